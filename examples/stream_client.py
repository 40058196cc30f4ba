"""Streams one chat answer from an llumctl endpoint and prints it as it comes.

Needs only the `openai` package:  pip install openai

    python examples/stream_client.py "Tell me about the river"
    python examples/stream_client.py --base-url http://127.0.0.1:8000/v1 --model embedded Hello

A key, if the endpoint wants one, comes from the variable OPENAI_API_KEY. An endpoint that speaks
https has an https:// URL; SSL_CERT_FILE names the authorities to believe.
"""

import argparse
import os
import sys
import time

import openai


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream one chat answer.")
    parser.add_argument("prompt", nargs="?", default="Hello")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--priority",
        choices=("normal", "high"),
        default="normal",
        help="high goes first in the queue; the API writes it as -1, that is minus the rank",
    )
    return parser.parse_args(arguments)


def stream(options: argparse.Namespace) -> None:
    client = openai.OpenAI(
        base_url=options.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none")
    )
    started_s = time.perf_counter()
    first_s = None
    num_chunks = 0
    chunks = client.chat.completions.create(
        model=options.model,
        messages=[{"role": "user", "content": options.prompt}],
        max_tokens=options.max_tokens,
        stream=True,
        extra_body={"priority": -1 if options.priority == "high" else 0},
    )
    for chunk in chunks:
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first_s = first_s or time.perf_counter()
            num_chunks += 1
            print(text, end="", flush=True)
    print()
    if first_s is not None:
        ended_s = time.perf_counter()
        print(
            f"{num_chunks} chunks; the first after {first_s - started_s:.3f} s,"
            f" all within {ended_s - started_s:.3f} s",
            file=sys.stderr,
        )


def main() -> int:
    try:
        stream(parse())
    except openai.APIStatusError as error:
        print(f"\nerror {error.status_code}: {error.message}", file=sys.stderr)
        return 1
    except openai.APIError as error:  # not reachable, or the stream broke off
        print(f"\nerror: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
