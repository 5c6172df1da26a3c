"""vLLM as a peer of a benchmark: `python peer_vllm.py FOLDER DTYPE ROWS NEW`, with a Python that has vLLM.

Reads a JSON list of prompts (ids) a line, continues each by NEW tokens, and writes `done TOKENS SECONDS`, of the
processor.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Serve until the input ends."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    folder, dtype, rows, new = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    model = LLM(folder, dtype=dtype, enforce_eager=True, max_num_seqs=rows, max_model_len=4096)
    sampling = SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0)
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": ids} for ids in json.loads(line)]
        model.reset_prefix_cache()
        began = time.process_time()
        answers = model.generate(prompts, sampling, use_tqdm=False)
        seconds = time.process_time() - began
        print(f"done {sum(len(answer.outputs[0].token_ids) for answer in answers)} {seconds}", flush=True)


if __name__ == "__main__":
    main()
