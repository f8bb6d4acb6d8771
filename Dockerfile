# One image serves every role. ACCELERATOR says which device it computes with. It is the name of a stage below: cpu, cuda or tpu.
#   docker build --build-arg ACCELERATOR=cuda --tag scoreline:cuda .
ARG ACCELERATOR=cpu

# A tag may be moved to another image. Whoever needs certainty adds the digest that the registry shows: python:3.11...@sha256:...
FROM python:3.11.15-slim-bookworm AS base

# Packages are installed before the source is copied, so that a change of the source installs nothing again. Every package
# is pinned with the hashes of its files, also dependencies of dependencies. So nothing is resolved or compiled here, no index
# can serve another file under the same name, and `pip check` fails the build if a pin is missing.
FROM base AS cpu
WORKDIR /build
RUN python -m venv --without-pip /opt/scoreline
COPY pins/cpu.txt ./pins/
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: --require-hashes -r pins/cpu.txt

FROM cpu AS cuda
COPY pins/cuda.txt ./pins/
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: --require-hashes -r pins/cuda.txt

FROM cpu AS tpu
COPY pins/tpu.txt ./pins/
RUN pip --python /opt/scoreline/bin/python install --no-cache-dir --no-deps --only-binary=:all: --require-hashes -r pins/tpu.txt

FROM ${ACCELERATOR} AS packages
RUN pip --python /opt/scoreline/bin/python check

FROM base
# A volume that is mounted over the cache of downloaded models takes its owner from this folder.
RUN useradd --uid 10001 --create-home scoreline \
 && install --directory --owner=scoreline --group=scoreline /var/cache/huggingface
COPY --from=packages /opt/scoreline /opt/scoreline
# The code runs from /app and is not installed. This is the script that an installer would have made for the command.
RUN printf '#!/opt/scoreline/bin/python\nfrom scoreline.command import main\nmain()\n' > /opt/scoreline/bin/scoreline \
 && chmod 755 /opt/scoreline/bin/scoreline
ENV PATH=/opt/scoreline/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/cache/huggingface
WORKDIR /app
# .dockerignore names everything that is copied.
COPY . ./
# The user of the container may not write beside the source, so without this every process would compile the source again.
RUN python -m compileall -q --invalidation-mode unchecked-hash /app
USER scoreline
EXPOSE 8000
STOPSIGNAL SIGTERM
# This is the exec form, and the command replaces itself with the role's process. So a signal to the container reaches the
# process that handles it.
ENTRYPOINT ["scoreline"]
CMD ["--help"]
