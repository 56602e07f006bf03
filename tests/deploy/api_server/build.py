"""Build the API server of Kubernetes from Debian's source: ``python -m tests.deploy.api_server.build FOLDER``.

Nothing is installed, and root is not needed: apt downloads packages and source into the folder and checks Debian's
signatures. At the end, the folder has ``kube-apiserver`` and ``etcd``; set ``MENS_TEST_KUBE_APISERVER`` to the path of
the former for the tests. On two cores, the build takes a quarter of an hour. It needs 2 GB of disk, of which 80 MB stay
in use.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

DEBIAN = "bookworm"
"""The last release of Debian whose source of Kubernetes has the server: later ones leave it out."""
GO, ETCD, REFLECT = "golang-1.19-go", "etcd-server", "golang-github-modern-go-reflect2-dev"
PACKAGES = (GO, "golang-1.19-src", ETCD, REFLECT)
MODULE = "k8s.io/kubernetes"
VERSIONS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
"""Packages that say which release it is: one for ``--version``, one for clients, and Helm asks."""
TAGGED = re.compile(r"^// \+k8s:openapi-gen=", re.MULTILINE)
"""Marks packages whose types are part of the server's own OpenAPI document, without which it applies nothing on the server's side."""
OTHERS = (
    "code-generator",
    "sample-apiserver",
    "gengo",
    "kube-openapi/cmd",
    "kube-openapi/test",
    "kube-openapi/pkg/generators",
)
"""Packages with that mark that are programs or examples."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where both programs go; made when it is not there")
    print(build(parser.parse_args().folder.resolve()))


def build(folder: Path) -> Path:
    """The path of the built server."""
    work = folder / "build"
    work.mkdir(parents=True, exist_ok=True)
    _download(work)
    packages, source = work / "packages", work / "go" / "src" / MODULE
    for archive in work.glob("*.deb"):
        run("dpkg-deb", "--extract", archive, packages)
    version = _unpack_source(work, source)
    _replace_reflect2(packages, source)
    go = Go(packages / "usr" / "lib" / "go-1.19", work / "go")
    _generate_openapi(go, source)
    server = folder / "kube-apiserver"
    major, minor = version.split(".")[:2]
    flags = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    linked = " ".join(
        f"-X {MODULE}/vendor/{package}.{name}={value}" for package in VERSIONS for name, value in flags.items()
    )
    go.build(source, "./cmd/kube-apiserver", server, "-tags=providerless", f"-ldflags=-s -w {linked}")
    shutil.copy(packages / "usr" / "bin" / "etcd", folder)
    run("chmod", "--recursive", "u+w", work)
    shutil.rmtree(work)
    return server


def _download(work: Path) -> None:
    """Packages and source, through lists of packages of our own: the machine's are not asked or changed."""
    sources = work / "sources.list"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    lines = [f"{kind} [signed-by={keys}] http://deb.debian.org/debian {DEBIAN} main\n" for kind in ("deb", "deb-src")]
    sources.write_text("".join(lines))
    for place in ("lists/partial", "cache/archives/partial"):
        (work / place).mkdir(parents=True, exist_ok=True)
    options = [f"-oDir::State::lists={work}/lists", f"-oDir::Cache={work}/cache"]
    options += [f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-", "-oAPT::Sandbox::User="]
    run("apt-get", "--quiet=2", *options, "update", cwd=work)
    run("apt-get", "--quiet=2", *options, "download", *PACKAGES, cwd=work)
    run("apt-get", "--quiet=2", *options, "source", "--download-only", "kubernetes", cwd=work)


def _unpack_source(work: Path, source: Path) -> str:
    """Kubernetes as published, and its version: Debian's patches change kubectl only."""
    (archive,) = work.glob("kubernetes_*.orig.tar.gz")
    unpacked = work / "unpacked"
    with tarfile.open(archive) as contents:
        contents.extractall(unpacked, filter="data")
    (found,) = unpacked.glob("kubernetes-*")
    source.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(source, ignore_errors=True)
    found.rename(source)
    return found.name.partition("-")[2]


def _replace_reflect2(packages: Path, source: Path) -> None:
    """The copy of reflect2 that Kubernetes 1.20 brings reads maps of Go up to 1.17; with a later Go the server crashes on custom resources."""
    (new,) = packages.glob("usr/share/gocode/src/github.com/modern-go/reflect2")
    old = source / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(old)
    shutil.copytree(new, old)


def _generate_openapi(go: Go, source: Path) -> None:
    """What Kubernetes' Makefile generates and its source does not have: definitions of all built-in types."""
    generator = go.path / "openapi-gen"
    go.build(source, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
    places = [source / "pkg", source / "plugin", *(source / "vendor" / "k8s.io").iterdir()]
    tagged = {
        str(file.parent.relative_to(source))
        for place in places
        for file in place.rglob("*.go")
        if TAGGED.search(file.read_text())
    }
    inputs = ",".join(f"{MODULE}/{path}" for path in sorted(tagged) if not any(other in path for other in OTHERS))
    header = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
    output = f"{MODULE}/pkg/generated/openapi"
    run(
        generator, "--logtostderr", "-i", inputs, "-p", output, "-O", "zz_generated.openapi", "-h", header,
        "-r", go.path / "violations", cwd=source, env=go.environment,
    )  # fmt: skip


class Go:
    """A Go toolchain that reaches no network and builds from a folder of sources.

    Attributes:
        path: the folder of sources, Go's GOPATH.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self._program, self.path = root / "bin" / "go", path
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "GOROOT": str(root), "GOPATH": str(path), "GOCACHE": str(path / "cache"),
            "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0", "GOPROXY": "off",
        }  # fmt: skip
        self.environment["PATH"] = f"{root / 'bin'}:{self.environment.get('PATH', '')}"

    def build(self, source: Path, package: str, output: Path, *flags: str) -> None:
        run("nice", "-n19", self._program, "build", *flags, "-o", output, package, cwd=source, env=self.environment)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    main()
