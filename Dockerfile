# The job service with its HTTP API. docs/guides/operations.md says how to use it.
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY docs docs
COPY penstock penstock
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[service,columns,sql,json,otel,lineage]"

FROM python:3.13-slim
RUN useradd --create-home --uid 1000 penstock \
    && install --directory --owner penstock --mode 700 \
       /var/lib/penstock /var/lib/penstock-metrics /data
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels \
    "penstock[service,columns,sql,json,otel,lineage]"
USER penstock
WORKDIR /data
ENV PENSTOCK_HOME=/var/lib/penstock
VOLUME ["/var/lib/penstock", "/var/lib/penstock-metrics", "/data"]
EXPOSE 8081
# SIGTERM ends the service, and the container ends with it. The next one starts the jobs again.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s CMD ["penstock", "list", "--json"]
ENTRYPOINT ["penstock"]
CMD ["jobmanager", "--ui", "8081", "--ui-host", "0.0.0.0", "--ui-name", "penstock", \
     "--ui-read-token", "/var/lib/penstock-metrics/read-token"]
