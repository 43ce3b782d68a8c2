# The sidecar: neither torch nor SGLang, no root, and nothing that it writes. From the repository's
# root:
#     docker build --file docker/sidecar.Dockerfile --tag hiqcache-sidecar .

# The digest that `docker buildx imagetools inspect` prints can be given here: NAME@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS python
ENV PATH=/opt/hiqcache/bin:$PATH

FROM python AS build
RUN python3 -m venv /opt/hiqcache
COPY pyproject.toml constraints.txt docker/requirements.py /source/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 /source/requirements.py /source/pyproject.toml sidecar > /tmp/requirements.txt \
    && python3 -m pip install --requirement /tmp/requirements.txt \
        --constraint /source/constraints.txt
COPY README.md LICENSE /source/
COPY hiqcache /source/hiqcache
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install --no-deps /source

FROM python
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hiqcache-sidecar" \
      org.opencontainers.image.description="HiQCache's metrics, summary and status page" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# hadolint ignore=DL3008  # Debian's archive keeps no older versions to pin
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/hiqcache /opt/hiqcache
COPY docker/healthcheck.py /opt/hiqcache/
ENV PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python3", "/opt/hiqcache/healthcheck.py", "http://127.0.0.1:9464/healthz", "3"]
ENTRYPOINT ["tini", "--", "hiqcache", "sidecar", "--host", "0.0.0.0"]
CMD ["--engine", "http://127.0.0.1:30000"]
