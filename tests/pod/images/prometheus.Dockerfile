# In place of prom/prometheus: Debian's server as /bin/prometheus, with the user, the paths and the
# start command of the real image.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus busybox \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /bin/busybox /usr/local/bin/wget \
    && mkdir -p /prometheus \
    && chown 65534:65534 /prometheus
USER nobody
EXPOSE 9090
VOLUME ["/prometheus"]
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
