# docker build -t oaxe . && docker run --rm -p 127.0.0.1:8000:8000 oaxe
# The server with the model in the box, on the CPU, without PyTorch. See docs/deployment.md.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/oaxe \
    && /opt/oaxe/bin/pip install --no-cache-dir --constraint constraints.txt setuptools \
        httptools jinja2 markupsafe numpy onnxruntime prometheus_client python-multipart rich \
        safetensors sentencepiece starlette typer uvicorn \
    && /opt/oaxe/bin/pip install --no-cache-dir --no-build-isolation --no-deps .

FROM python:3.11-slim
COPY --from=build /opt/oaxe /opt/oaxe
RUN useradd --system --create-home oaxe
USER oaxe
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/opt/oaxe/bin/python", \
    "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["/opt/oaxe/bin/oaxe", "serve", "--host", "0.0.0.0"]
