"""vLLM: engine `vllm` (resident) and engine `vllm-job` (through `ray.data.llm`).

Only `internals` names anything of vLLM. Importing this package imports neither vLLM nor torch.
"""
