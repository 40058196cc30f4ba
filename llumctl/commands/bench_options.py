"""The options of `llumctl bench`."""

from pathlib import Path
from typing import Annotated

import typer

from llumctl.commands.options import TableOrJson, format_option
from llumctl.lab.option_values import Arrivals, Verify

DEFAULT_RATE = 1.0
DEFAULT_DURATION_S = 30.0
DEFAULT_LENGTHS = "S-S"


# -- the load -----------------------------------------------------------------------------

Rate = Annotated[
    float | None, typer.Option(metavar="R", help=f"Requests per second ({DEFAULT_RATE:g}).")
]
ArrivalKind = Annotated[
    Arrivals | None, typer.Option(help="How the gaps between requests vary (poisson).")
]
Cv = Annotated[
    float | None,
    typer.Option(metavar="C", help="Gamma arrivals: coefficient of variation of the gaps."),
]
Duration = Annotated[
    float | None,
    typer.Option(
        metavar="S", help=f"Send for so many seconds ({DEFAULT_DURATION_S:g}, unless --requests)."
    ),
]
NumRequests = Annotated[int | None, typer.Option(metavar="N", help="Send so many requests.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|IN,OUT",
        help="Tokens of prompts and outputs: S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt as in"
        " table 1 of the Llumnix paper; zipf:M-M as its authors drew them; or two numbers"
        f" ({DEFAULT_LENGTHS}).",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Replay a trace of Azure, BurstGPT, Mooncake or Qwen, or a recording of llumctl's.",
    ),
]
ScaleRate = Annotated[
    float | None,
    typer.Option(metavar="X", help="Replay the trace so many times as fast (1)."),
]
MaxTokensCap = Annotated[
    int | None, typer.Option(metavar="N", help="No prompt and no output is longer than this.")
]
Priorities = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LEVEL=SHARE",
        help="A share of the requests, as in high=0.1; the rest is of rank 0. LEVEL is a name"
        " or vLLM's number (lower goes first). Repeatable.",
    ),
]
Seed = Annotated[int, typer.Option(help="Fixes arrivals, lengths, levels and prompts.")]

# -- what is measured and checked ---------------------------------------------------------

Warmup = Annotated[
    float,
    typer.Option(metavar="S", help="Leave requests due in the first seconds out of latencies."),
]
Verification = Annotated[
    Verify,
    typer.Option(
        help="tokens: every id, as emulated engines must answer; counts: how many ids came;"
        " usage: only how many the server says came; auto: tokens if emulated, else counts."
    ),
]
Timeout = Annotated[float, typer.Option(metavar="S", help="How long one request may take.")]

# -- the endpoint -------------------------------------------------------------------------

Url = Annotated[
    str | None, typer.Option(metavar="URL", help="Any OpenAI endpoint instead of a cluster's.")
]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model to ask for; default the first.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its first line is the endpoint's API key.")
]

# -- where the figures go -----------------------------------------------------------------

OutputFormat = Annotated[TableOrJson, format_option]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the JSON report there too.")
]
Records = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a JSON line per request.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a PNG of latencies and rates.")
]
