# Two images. The default, carillon-embedded, runs every role, `up` too. With --target roles: carillon, for all roles but analytics,
# without the embedded store and its packages.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS browser-files
WORKDIR /src
RUN apt-get update && apt-get install --no-install-recommends --yes npm && rm -rf /var/lib/apt/lists/*
COPY sdk sdk
COPY setup setup
RUN python -m setup.browser_files

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
WORKDIR /src
COPY requirements requirements
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock
RUN python -m venv /opt/carillon && /opt/carillon/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.lock
COPY pyproject.toml README.md ./
COPY protos protos
COPY services services
COPY edge edge
COPY console console
COPY analytics analytics
COPY carillon carillon
COPY sdk sdk
COPY setup setup
COPY --from=browser-files /src/console console
# docker build --build-arg COMMIT=$(git rev-parse HEAD): what `carillon --version` names.
ARG COMMIT
RUN printf %s "$COMMIT" > services/process/COMMIT
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . ./sdk
RUN /opt/carillon/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM build AS build-embedded
RUN /opt/carillon/bin/pip install --no-cache-dir --require-hashes -r requirements/embedded.lock

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base
RUN groupadd --gid 10001 carillon \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin carillon \
 && install -d -o carillon -g carillon -m 0700 /data /keys /device-keys /secrets-key /persons-key \
      /accounts-signing-key /registry-signing-key /public-keys /identity /identities \
      /identities/registry /identities/targeting /identities/scheduling /identities/delivery \
      /identities/analytics /identities/accounts /identities/webhooks /identities/gateway /identities/edge \
      /identities/console /identities/operator /identities/operator-compose /identities/archive
ENV PATH=/opt/carillon/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CARILLON_DATA_DIR=/data \
    CARILLON_HOST=0.0.0.0
USER carillon
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8001 8080 8200 8300 8400
STOPSIGNAL SIGTERM
ENTRYPOINT ["carillon"]

FROM base AS roles
COPY --from=build /opt/carillon /opt/carillon

FROM base AS embedded
COPY --from=build-embedded /opt/carillon /opt/carillon
CMD ["up"]
