"""vLLM: engine `vllm` (resident) and engine `vllm-job` (through `ray.data.llm`)."""
