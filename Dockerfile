# One image serves every role. ACCELERATOR says which device it computes with: cpu, cuda or tpu.
#   make image ACCELERATOR=cuda
#   docker build --build-arg ACCELERATOR=cuda --tag scoreline:cuda .

# A tag may be moved to another image. Whoever needs certainty adds the digest that the registry shows: python:3.11...@sha256:...
FROM python:3.11.15-slim-bookworm AS base

# Packages are installed before the source is copied, so that a change of the source installs nothing again. Every package
# is pinned with the hashes of its files, also dependencies of dependencies. So nothing is resolved or compiled here, no index
# can serve another file under the same name, and `pip check` fails the build if a pin is missing.
#
# Where packages come from another index than PyPI, pip's configuration is a secret of the build, and stays out of the image:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf .
FROM base AS packages
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils
WORKDIR /build
RUN python -m venv --without-pip /opt/scoreline
COPY pins/cpu.txt ./pins/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip --python /opt/scoreline/bin/python install \
      --no-cache-dir --no-compile --no-deps --only-binary=:all: --require-hashes -r pins/cpu.txt
# Builders that do not know each other's extensions all know this way to choose what is built.
ARG ACCELERATOR=cpu
COPY pins ./pins/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    test "$ACCELERATOR" = cpu \
 || pip --python /opt/scoreline/bin/python install \
      --no-cache-dir --no-compile --no-deps --only-binary=:all: --require-hashes -r "pins/$ACCELERATOR.txt"
RUN pip --python /opt/scoreline/bin/python check
# What no role ever reads, a third of the whole: the tests of packages; the networks, pictures and sounds of transformers, which
# need torch, where only its tokenizers are used; checkpoints in the format of Orbax, which Flax would write; and the names of
# inner functions in the two largest libraries.
RUN cd /opt/scoreline/lib/python3.*/site-packages \
 && find . -type d -name tests -prune -exec rm -r {} + \
 && find transformers/models -regex '.*/\(modeling\|modular\|processing\|image_processing\|video_processing\|feature_extraction\|convert\)_[^/]*\.py' \
      -not -path '*/auto/*' -delete \
 && rm -r tensorstore orbax* \
 && strip --strip-unneeded jaxlib/libjax_common.so uvloop/*.so

FROM base
# A volume that is mounted over the cache of downloaded models takes its owner from this folder.
RUN useradd --uid 10001 --create-home scoreline \
 && install --directory --owner=scoreline --group=scoreline /var/cache/huggingface
COPY --from=packages /opt/scoreline /opt/scoreline
# The code runs from /app and is not installed. This is the script that an installer would have made for the command.
RUN printf '#!/opt/scoreline/bin/python\nfrom scoreline.start import main\nmain()\n' > /opt/scoreline/bin/scoreline \
 && chmod 755 /opt/scoreline/bin/scoreline
ENV PATH=/opt/scoreline/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/cache/huggingface
WORKDIR /app
# .dockerignore names everything that is copied.
COPY . ./
# The user of the container may not write beside the source, so without this every process would compile the source again.
# Of the packages, the modules that the service imports are compiled, and the others are not. Of the client and the command, it
# imports the command alone: files of tables need packages that are not here.
RUN python -m compileall -q --invalidation-mode unchecked-hash /app \
 && python -c 'import importlib, pathlib, scoreline.command, scoreline.start; \
[importlib.import_module(".".join(file.with_suffix("").parts)) \
 for file in sorted(pathlib.Path().glob("[a-z]*/**/*.py")) \
 if file.parts[0] not in ("migrations", "demonstration", "scoreline") and not file.name.startswith("__")]'
USER scoreline
EXPOSE 8000
STOPSIGNAL SIGTERM
# This is the exec form, and the command replaces itself with the role's process. So a signal to the container reaches the
# process that handles it.
ENTRYPOINT ["scoreline"]
CMD ["--help"]
