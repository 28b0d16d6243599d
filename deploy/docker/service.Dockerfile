# One image definition for every process: docker build --build-arg SERVICE=scheduler -f deploy/docker/service.Dockerfile .
# Its steps are run by tests/deploy/test_image.py; the image itself is built wherever there is a container engine.
FROM python:3.11-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13 /uv /bin/
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
ARG SERVICE
RUN test -n "$SERVICE" || { echo "no SERVICE: build with --build-arg SERVICE=scheduler, or another folder of services/ or tools/" >&2; exit 1; }
WORKDIR /app
# The extras of the simulator and the command line draw figures, which no container does.
# Third-party packages first: this layer changes with the lock file alone. It has no member to compare the lock with,
# hence --frozen.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-dev --no-install-workspace $(case "$SERVICE" in simulator|cli) ;; *) echo --all-extras ;; esac) --package pointsman-${SERVICE}
COPY contracts contracts
COPY shared shared
COPY services services
COPY tools tools
RUN --mount=type=cache,target=/root/.cache/uv uv sync --locked --no-dev --no-editable $(case "$SERVICE" in simulator|cli) ;; *) echo --all-extras ;; esac) --package pointsman-${SERVICE}

FROM python:3.11-slim
ARG SERVICE
ENV SERVICE=${SERVICE} PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1
# /state is for a service that keeps something: a new volume there belongs to it.
RUN useradd --system --create-home --uid 10001 app && install --directory --owner 10001 /state
COPY --from=build /app/.venv /app/.venv
USER 10001
# The command of `cli` is `pointsman` itself.
CMD ["sh", "-c", "exec $(command -v pointsman-${SERVICE} || command -v pointsman)"]
