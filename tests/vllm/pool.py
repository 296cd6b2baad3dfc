"""Start several real vLLM servers on a small CPU-only machine, from one import of vLLM.

usage: pool.py --model DIRECTORY --count N --ready-file FILE --log-directory DIRECTORY

Importing vLLM costs far more than anything the tiny model does, and a server imports it three times: API server, engine
core and worker. Here it is imported once, and all of them are forked from that process. Each server leads a process
group; one that dies is started again on its port. SIGTERM ends all. Not for GPUs: forking after CUDA is set up is unsafe.

The ready file, written in one step once all servers answer and again after each restart, is what the tests read:
[{"url": "http://127.0.0.1:PORT", "process_group": ID}, ...]
"""

import argparse
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import urllib.request
from pathlib import Path

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1",
}
# A cache small enough to fill, few sequences at once so that requests queue, and everything that reports usage.
# The CPU kernels take blocks of 32 and multiples only.
ENGINE = [
    "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "4",
    "--max-num-batched-tokens", "2048", "--block-size", "32", "--num-gpu-blocks-override", "256", "--enforce-eager",
    "--enable-prefix-caching", "--enable-prompt-tokens-details",
]
PATIENCE_SECONDS = 900
STOP_SECONDS = 15


def import_vllm():
    """Everything that a server, its engine core and its worker import, and fork where they would spawn."""
    import vllm.entrypoints.launchers.api_server.entry as entry
    import vllm.model_executor.model_loader.default_loader
    import vllm.model_executor.models.qwen2
    import vllm.v1.attention.backends.cpu_attn
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.coordinator as coordinator
    import vllm.v1.engine.core
    import vllm.v1.engine.utils as utils
    import vllm.v1.executor.multiproc_executor as executor
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker

    for module in (utils, coordinator, executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    gc.collect()
    gc.freeze()  # shared pages stay shared
    return entry.main


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


class Pool:
    def __init__(self, serve, options):
        self.serve = serve
        self.options = options
        self.ports = {}  # by process group
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def stop(self, *_):
        self.stopping = True

    def start(self, port):
        group = os.fork()
        if group == 0:
            try:
                self.become_server(port)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        self.ports[group] = port

    def become_server(self, port):
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(self.options.log_directory / f"vllm-{port}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["vllm", "--host", "127.0.0.1", "--port", str(port), "--model", str(self.options.model), *ENGINE]
        self.serve()

    def ended(self):
        """The servers that have ended since the last call, by port."""
        ports = []
        while self.ports:
            group, _ = os.waitpid(-1, os.WNOHANG)
            if group == 0:
                break
            kill(group, signal.SIGKILL)  # what is left of it
            ports.append(self.ports.pop(group))
        return ports

    def run(self):
        for port in free_ports(self.options.count):
            self.start(port)
        self.wait_ready(restart=False)
        while not self.stopping:
            dead = self.ended()
            for port in dead:
                print(f"port {port} ended and starts again", flush=True)
                self.start(port)
            if dead:
                self.wait_ready(restart=True)
            time.sleep(0.1)

    def wait_ready(self, restart):
        begun = time.monotonic()
        waiting = set(self.ports.values())
        while waiting and not self.stopping:
            waiting = {port for port in waiting if not healthy(port)}
            for port in self.ended():
                if not restart:
                    sys.exit(f"the server on port {port} ended; see {self.options.log_directory}/vllm-{port}.log")
                self.start(port)
                waiting.add(port)
            if time.monotonic() - begun > PATIENCE_SECONDS:
                sys.exit(f"not ready after {PATIENCE_SECONDS} s: ports {sorted(waiting)}; see {self.options.log_directory}")
            time.sleep(0.2)
        if not self.stopping:
            self.publish()
            print(f"ready in {time.monotonic() - begun:.0f} s: ports {sorted(self.ports.values())}", flush=True)

    def publish(self):
        servers = [{"url": f"http://127.0.0.1:{port}", "process_group": group} for group, port in self.ports.items()]
        draft = self.options.ready_file.with_suffix(".draft")
        draft.write_text(json.dumps(sorted(servers, key=lambda server: server["url"])))
        draft.replace(self.options.ready_file)

    def end(self):
        self.options.ready_file.unlink(missing_ok=True)
        for group in self.ports:
            kill(group, signal.SIGTERM)
        limit = time.monotonic() + STOP_SECONDS
        while self.ports and time.monotonic() < limit:
            self.ended()
            time.sleep(0.1)
        for group in self.ports:
            kill(group, signal.SIGKILL)


def kill(group, number):
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--log-directory", type=Path, required=True)
    options = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    pool = Pool(import_vllm(), options)
    try:
        pool.run()
    finally:
        pool.end()


main()
