# The one image of every role. ACCELERATOR names what it computes with, and is the name of a stage below: cpu, cuda or tpu.
#   docker build --build-arg ACCELERATOR=cuda --tag scoreline:cuda .
ARG ACCELERATOR=cpu

FROM python:3.11.14-slim-bookworm AS base

# Packages come before source, so that a change of source installs nothing. Every package is pinned, dependencies of
# dependencies too: nothing is resolved or compiled here, and `pip check` fails the build where a pin is missing.
FROM base AS cpu
WORKDIR /build
RUN python -m venv --without-pip /opt/scoreline
COPY requirements.txt ./
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: -r requirements.txt

FROM cpu AS cuda
COPY requirements-cuda.txt ./
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: -r requirements-cuda.txt

FROM cpu AS tpu
COPY requirements-tpu.txt ./
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: -r requirements-tpu.txt

FROM ${ACCELERATOR} AS packages
RUN pip --python /opt/scoreline/bin/python check

FROM base
# A volume that is mounted over the cache of downloaded models takes its owner from the folder here.
RUN useradd --uid 10001 --create-home scoreline \
 && install --directory --owner=scoreline --group=scoreline /var/cache/huggingface
COPY --from=packages /opt/scoreline /opt/scoreline
# The rooms are run where they lie. This is the script that an installer would have made for the command.
RUN printf '#!/opt/scoreline/bin/python\nfrom scoreline.command import main\nmain()\n' > /opt/scoreline/bin/scoreline \
 && chmod 755 /opt/scoreline/bin/scoreline
ENV PATH=/opt/scoreline/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/cache/huggingface
WORKDIR /app
# What .dockerignore lets in, and it names each thing.
COPY . ./
# The user that runs it may not write beside the source, and would compile it anew in every process.
RUN python -m compileall -q --invalidation-mode unchecked-hash /app
USER scoreline
EXPOSE 8000
STOPSIGNAL SIGTERM
# In exec form, and the command turns into the role's process: a signal to the container reaches the one that handles it.
ENTRYPOINT ["scoreline"]
CMD ["--help"]
