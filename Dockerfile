# The image of every service of docker-compose.yml, with vLLM for NVIDIA GPUs (the host needs its container toolkit).
FROM python:3.12-slim
# vLLM's compiler makes kernels when it starts.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml celeryconfig.py ./
COPY docs/package.md docs/package.md
COPY deploy/server deploy/server
COPY batchyard batchyard
COPY store store
COPY tasks tasks
COPY results results
COPY recipes recipes
COPY inference inference
COPY webapp webapp
RUN pip install --no-cache-dir ".[server,vllm,audio,postgres,s3,oidc,otel]" ./deploy/server
COPY models.toml ./
COPY examples examples
RUN useradd --create-home --uid 1000 batchyard && install --directory --owner batchyard /data
USER batchyard
ENV PYTHONUNBUFFERED=1 BATCHYARD_DATA=/data BATCHYARD_MODELS=/app/models.toml
CMD ["batchyard", "up", "--host", "0.0.0.0"]
