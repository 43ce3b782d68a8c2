# SGLang with HiQCache on the reference CPU platform, and the demo model: for trying it out and for
# CI, no GPU. From the repository's root:
#     docker build --file docker/cpu.Dockerfile --tag hiqcache-cpu .

# The digest that `docker buildx imagetools inspect` prints can be given here: NAME@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

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

# What changes rarely: Debian's packages, then SGLang and all that it needs, 11 GB.
FROM python AS sglang
# hadolint ignore=DL3008  # Debian's archive keeps no older versions to pin
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=requirements /requirements.txt /tmp/requirements.txt
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --requirement /tmp/requirements.txt --constraint /tmp/constraints.txt

# A stage of its own, so that the model is converted again only when its code changes.
FROM sglang AS model
COPY hiqcache/__init__.py hiqcache/errors.py /source/hiqcache/
COPY hiqcache/model /source/hiqcache/model
WORKDIR /source
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -c 'from pathlib import Path; from hiqcache.lab.model.smollm2 import prepare; \
prepare(Path("/cache")).rename("/smollm2-135m-instruct")'

FROM sglang
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hiqcache-cpu" \
      org.opencontainers.image.description="SGLang with HiQCache on a CPU, and SmolLM2-135M-Instruct" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --user-group --create-home hiqcache
COPY --from=model /smollm2-135m-instruct /models/smollm2-135m-instruct
COPY docker/healthcheck.py docker/entrypoint.sh docker/logging.json /opt/hiqcache/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python3 -m pip install --no-deps --no-index --no-cache-dir /wheels/*.whl \
    && hiqcache doctor --hooks
ENV SGLANG_PLATFORM=hiqcache_cpu \
    OMP_WAIT_POLICY=PASSIVE \
    LRU_CACHE_CAPACITY=64 \
    ONEDNN_PRIMITIVE_CACHE_CAPACITY=64
USER 10001:10001
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=25s --start-period=5m --retries=3 \
    CMD ["python3", "/opt/hiqcache/healthcheck.py", "http://127.0.0.1:30000/health", "20"]
ENTRYPOINT ["tini", "--", "/opt/hiqcache/entrypoint.sh"]
CMD ["--model-path", "/models/smollm2-135m-instruct", "--host", "0.0.0.0", "--port", "30000", "--enable-metrics"]
