"""Let PyPI's torch, a CUDA build, load on a machine without CUDA and without its 3.4 GB of packages.

For each CUDA library that torch is linked to and the machine does not have, a tiny library of that name goes beside
torch's own. Together they define every symbol that nobody else provides; each function returns 100
(cudaErrorNoDevice), so torch finds no GPU. Needs gcc and binutils. For test machines only.
"""

import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

TORCH = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
SYSTEM = ["libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1",
          "ld-linux-x86-64.so.2", "libnuma.so.1"]
# Symbols that the loader, the compiler's runtime or Python itself provides.
PROVIDED = re.compile(r"_ITM_|__gmon|__cxa_finalize|_?Py")
# Functions whose result is a text, not a status.
TEXTS = {"cudaGetErrorString", "cudaGetErrorName"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def system_libraries():
    """Where the loader finds a library, by its name."""
    return dict(re.findall(r"^\s*(\S+) .*=> (\S+)$", output("ldconfig", "-p"), re.MULTILINE))


def needed(library):
    return re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", library))


def symbols(library, which):
    """`name` or `name@version`, without the weak ones."""
    lines = (line.split() for line in output("nm", "-D", which, library).splitlines())
    return {words[-1].replace("@@", "@") for words in lines if words and words[-2:-1] != ["w"]}


def versions(library, missing):
    """Which missing library each symbol version must come from: the loader insists on a real definition."""
    homes, current = {}, None
    for line in output("objdump", "-p", library).splitlines():
        if required := re.match(r"\s+required from (\S+):", line):
            current = required.group(1)
        version = re.match(r"\s+0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (\S+)", line)
        if version and current in missing:
            homes[version.group(1)] = current
    return homes


def plan(libraries):
    """The stubs to make: library name -> version ("" for none) -> symbols."""
    own, system = {library.name for library in libraries}, system_libraries()
    missing, undefined, defined, homes = [], set(), set(), {}
    for library in libraries:
        undefined |= symbols(library, "--undefined-only")
        defined |= symbols(library, "--defined-only")
        for name in needed(library):
            if name not in own and name not in system and name not in missing:
                missing.append(name)
    for library in libraries:
        homes |= versions(library, missing)
    for name in filter(system.get, SYSTEM):
        defined |= symbols(system[name], "--defined-only")
    stubs = {name: {} for name in missing}
    for version, name in homes.items():
        stubs[name].setdefault(version, [])
    if not missing:
        return stubs
    # A symbol without a version may live in any of them; one without versions of its own is the tidy place.
    anywhere = next((name for name in missing if name not in homes.values()), missing[0])
    provided = {symbol.split("@")[0] for symbol in defined}
    for symbol in sorted(undefined):
        name, _, version = symbol.partition("@")
        if name in provided or PROVIDED.match(name):
            continue
        if version in homes:
            stubs[homes[version]][version].append(name)
        else:
            stubs[anywhere].setdefault("", []).append(name)
    return stubs


def build(name, by_version):
    assembly = [".text", "status: movl $100,%eax", "ret", "text: leaq message(%rip),%rax", "ret",
                ".data", 'message: .asciz "no CUDA (stub)"', ".text"]
    version_script = ""
    for version, names in by_version.items():
        for symbol in names:
            value = "text" if symbol in TEXTS else "status"
            assembly += [f'.globl "{symbol}"', f'.set "{symbol}", {value}', f'.type "{symbol}",@function']
        if version:
            version_script += version + " { global: " + "".join(f'"{symbol}"; ' for symbol in names) + "};\n"
    assembly.append('.section .note.GNU-stack,"",@progbits\n')
    with tempfile.TemporaryDirectory() as directory:
        source, script = Path(directory, "stub.s"), Path(directory, "versions.map")
        source.write_text("\n".join(assembly))
        script.write_text(version_script)
        command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", TORCH / name, source]
        if version_script:
            command.append(f"-Wl,--version-script,{script}")
        subprocess.run(command, check=True)


def main():
    # libcaffe2_nvrtc is loaded only where there is a GPU.
    libraries = [path for path in sorted(TORCH.glob("*.so*")) if not path.is_symlink() and "caffe2_nvrtc" not in path.name]
    stubs = plan(libraries)
    for name, by_version in stubs.items():
        build(name, by_version)
    print(f"stubs for {len(stubs)} CUDA libraries")


main()
