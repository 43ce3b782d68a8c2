# Server and sidecar in one container, for places that run one image and no Compose (RunPod pods,
# Vast instances): deploy/runpod.md, deploy/vast.md. From the repository's root:
#     docker build --file docker/server.Dockerfile --tag hiqcache-server .
#     docker build --file docker/allinone.Dockerfile --tag hiqcache-allinone .

ARG SERVER_IMAGE=hiqcache-server
FROM ${SERVER_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hiqcache-allinone" \
      org.opencontainers.image.description="SGLang with HiQCache, and its sidecar, in one container" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The sidecar needs FastAPI, uvicorn, httpx, pydantic and the Prometheus client. SGLang brings them
# all; the build fails if one is missing.
RUN python3 -c 'import hiqcache.sidecar.serve'
COPY docker/supervise.sh /opt/hiqcache/
EXPOSE 30000 9464
# A group signal (-g) would reach SGLang's children before SGLang has drained its requests.
ENTRYPOINT ["tini", "--", "/opt/hiqcache/supervise.sh"]
