"""Other engines as peers of a benchmark, each by a Python that has it: `peer_models.py vllm FOLDER DTYPE ROWS NEW`, or
`peer_models.py llama_cpp FILE DTYPE ROWS NEW` (the package xllamacpp).

Reads a JSON list of prompts (ids) a line, continues each by NEW tokens, and writes `done TOKENS SECONDS`, of the
processor. All rows of a line are in flight at once. llama.cpp serves them in as many slots, on one thread, in the
numbers of its file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Prompts = list[list[int]]


def vllm(folder: str, dtype: str, rows: int, new: int) -> Callable[[Prompts], int]:
    """Continues prompts; returns how many tokens were sampled."""
    import vllm as library  # type: ignore[import-not-found, unused-ignore]  # a peer's own

    model: Any = library.LLM(folder, dtype=dtype, enforce_eager=True, max_num_seqs=rows, max_model_len=4096)
    sampling = library.SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0)

    def decode(prompts: Prompts) -> int:
        model.reset_prefix_cache()
        answers = model.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return decode


def llama_cpp(file: str, dtype: str, rows: int, new: int) -> Callable[[Prompts], int]:
    """The same by llama.cpp's own server, in this process."""
    import xllamacpp as library  # type: ignore[import-not-found, unused-ignore]  # a peer's own

    settings: Any = library.CommonParams()
    settings.model.path = file
    settings.n_parallel, settings.n_ctx = rows, rows * 2048
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server: Any = library.Server(settings)
    plain = {"n_predict": new, "ignore_eos": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

    def continued(seed: int, ids: list[int]) -> int:
        answer = server.handle_completions({"prompt": ids, "seed": seed, "cache_prompt": True, **plain})
        return int(answer["usage"]["completion_tokens"])

    pool = ThreadPoolExecutor(rows)
    return lambda prompts: sum(pool.map(continued, range(len(prompts)), prompts))


def main() -> None:
    """Serve until the input ends."""
    name, model, dtype, rows, new = sys.argv[1:6]
    decode = {"vllm": vllm, "llama_cpp": llama_cpp}[name](model, dtype, int(rows), int(new))
    for line in sys.stdin:
        prompts: Prompts = json.loads(line)
        began = time.process_time()
        count = decode(prompts)
        print(f"done {count} {time.process_time() - began}", flush=True)


if __name__ == "__main__":
    main()
