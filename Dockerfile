# The image of every service of docker-compose.yml.
#
#   docker build -t batchyard .                         vLLM for NVIDIA GPUs; the host needs their container toolkit
#   docker build -t batchyard --build-arg VLLM=yes .    vLLM for CPUs; VLLM=no: engine `transformers` alone
#
# A pip configuration of your own (an index, PyTorch's CPU wheels) goes in as a secret: --secret id=pip,src=pip.conf. The image
# keeps nothing of it.
FROM python:3.12-slim
ARG VLLM=cuda
# The versions that were tested; empty: the newest that fit.
ARG CONSTRAINTS=deploy/constraints.txt
# vLLM compiles when it starts; its CPU build finds its cores with libnuma.
RUN if [ "$VLLM" != no ]; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev libnuma1 \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --create-home --uid 1000 batchyard && install --directory --owner batchyard /data
WORKDIR /app
# Packages come before code, so that new code leaves their layer as it is.
COPY pyproject.toml ./
COPY docs/package.md docs/package.md
COPY deploy/install.py deploy/constraints.txt deploy/
COPY deploy/server deploy/server
COPY batchyard/__init__.py batchyard/__init__.py
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=cache,target=/root/.cache/pip \
    PIP_CONSTRAINT=$CONSTRAINTS python deploy/install.py --vllm "$VLLM" --extras postgres,s3,oidc,otel
COPY celeryconfig.py models.toml LICENSE NOTICE ./
COPY batchyard batchyard
COPY store store
COPY tasks tasks
COPY results results
COPY recipes recipes
COPY inference inference
COPY jobs jobs
COPY webapp webapp
COPY examples examples
# A read-only file system keeps no bytecode that is made later.
RUN python -m compileall -q celeryconfig.py batchyard store tasks results recipes inference webapp jobs
USER batchyard
ENV PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1 BATCHYARD_DATA=/data BATCHYARD_MODELS=/app/models.toml
CMD ["batchyard", "up", "--host", "0.0.0.0"]
