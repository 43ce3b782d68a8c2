# SGLang's own CUDA image with HiQCache in it. From the repository's root:
#     docker build --file docker/server.Dockerfile --tag hiqcache-server .

# Both can be pinned to what `docker buildx imagetools inspect NAME` prints: NAME@sha256:...
ARG BASE_IMAGE=lmsysorg/sglang:v0.5.23
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY hiqcache /source/hiqcache
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip wheel --no-deps --wheel-dir /wheels /source

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hiqcache-server" \
      org.opencontainers.image.description="SGLang with HiQCache's INT8 host tier" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# hadolint ignore=DL3008  # the archive keeps no older versions to pin
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
COPY docker/healthcheck.py docker/entrypoint.sh docker/logging.json /opt/hiqcache/
# Without its dependencies: the image's own torch and SGLang stay as they are. Distributions mark
# their Python as theirs; in an image there is no other.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-deps --no-index --no-cache-dir \
        /wheels/*.whl \
    && hiqcache doctor --hooks
ENV PYTHONUNBUFFERED=1
EXPOSE 30000
STOPSIGNAL SIGTERM
# Weights may be downloaded first. The probe generates a token, which waits for its turn.
HEALTHCHECK --interval=10s --timeout=25s --start-period=20m --retries=3 \
    CMD ["python3", "/opt/hiqcache/healthcheck.py", "http://127.0.0.1:30000/health", "20"]
ENTRYPOINT ["tini", "--", "/opt/hiqcache/entrypoint.sh"]
CMD ["--help"]
