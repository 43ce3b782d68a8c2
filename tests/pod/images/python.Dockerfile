# In place of python:3.12-slim: Debian's Python with its headers, reached by the same names.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv python3-pip ca-certificates \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \
    && ln -s /usr/bin/python3 /usr/local/bin/python
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
COPY constraints.txt /etc/constraints.txt
