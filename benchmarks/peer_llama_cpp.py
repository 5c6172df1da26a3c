"""llama.cpp as a peer of a benchmark: `python peer_llama_cpp.py FILE ROWS NEW`, with a Python that has xllamacpp.

Reads a JSON list of prompts (ids) a line, continues each by NEW tokens, and writes `done TOKENS SECONDS`, of the
processor. All rows are in flight at once, in as many slots of its server, on one thread.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main() -> None:
    """Serve until the input ends."""
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    file, rows, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    settings: Any = xllamacpp.CommonParams()
    settings.model.path = file
    settings.n_parallel, settings.n_ctx = rows, rows * 2048
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)

    def continued(seed: int, ids: list[int]) -> int:
        answer = server.handle_completions(
            {
                "prompt": ids,
                "n_predict": new,
                "ignore_eos": True,
                "temperature": 1.0,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "seed": seed,
                "cache_prompt": True,
            }
        )
        return int(answer["usage"]["completion_tokens"])

    with ThreadPoolExecutor(rows) as pool:
        for line in sys.stdin:
            prompts = json.loads(line)
            began = time.process_time()
            count = sum(pool.map(continued, range(len(prompts)), prompts))
            print(f"done {count} {time.process_time() - began}", flush=True)


if __name__ == "__main__":
    main()
