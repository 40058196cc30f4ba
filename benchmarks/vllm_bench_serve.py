"""vLLM's own load generator, `vllm bench serve`, against any base URL.

    python -m benchmarks.vllm_bench_serve http://127.0.0.1:8000 --tokenizer FOLDER

The exit code is 1 if a request failed.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from controller.adapters.vllm import command


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(options.result or Path(folder) / "result.json").resolve()
        command.run(_arguments(options, result_file))
        result = json.loads(result_file.read_text("utf-8"))
    completed, failed = result["completed"], result.get("failed", 0)
    print(f"{completed} of {options.num_prompts} requests completed, {failed} failed")
    return 0 if completed == options.num_prompts and not failed else 1


def _arguments(options: argparse.Namespace, result_file: Path) -> list[str]:
    values: dict[str, Any] = {
        "--backend": "openai",
        "--base-url": options.base_url.rstrip("/").removesuffix("/v1"),
        "--endpoint": "/v1/completions",
        "--model": options.model,
        "--tokenizer": options.tokenizer,
        "--dataset-name": "random",
        "--random-input-len": options.input_len,
        "--random-output-len": options.output_len,
        "--num-prompts": options.num_prompts,
        "--max-concurrency": options.concurrency,
        "--temperature": 0,
        "--seed": options.seed,
        "--result-dir": result_file.parent,
        "--result-filename": result_file.name,
    }
    flags = ("--ignore-eos", "--save-result", "--disable-tqdm")
    return ["bench", "serve", *flags, *(str(part) for pair in values.items() for part in pair)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_bench_serve")
    parser.add_argument("base_url", help="with or without /v1")
    parser.add_argument("--tokenizer", required=True, help="the model's folder")
    parser.add_argument("--model", default="embedded", help="the name that is served")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", help="where to keep vLLM's JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
