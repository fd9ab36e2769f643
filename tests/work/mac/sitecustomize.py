"""Makes a Python of Linux resemble one of macOS: its name, what its kernel lacks, and the packages that have
no builds for it. Python imports this module at its start if its folder is in PYTHONPATH.

The libraries stay those of Linux. What they choose by the platform when they are imported is imported first.
"""

import errno
import importlib.machinery
import os
import sys
import sysconfig
import urllib.request  # noqa: F401  # on macOS it imports a module that asks the system for proxies

import psutil  # noqa: F401

ABSENT = ("bitsandbytes", "deepspeed", "liger_kernel", "ray", "triton", "vllm")
find = importlib.machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find(name, path, target)


def refuse(event, arguments):
    """Files of the kernel, limits on memory, and forks, which macOS has but its libraries do not survive."""
    if event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    if event in ("resource.setrlimit", "os.fork"):
        raise OSError(errno.EINVAL, f"{event} on macOS")


sysconfig.get_config_vars()  # those that Python was built with
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
del os.sched_getaffinity
sys.platform = "darwin"
sys.addaudithook(refuse)
