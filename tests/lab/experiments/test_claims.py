from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from diffusion_mf.lab.experiments.claims import Claim, Claims


def test_only_one_of_many_gets_a_claim(tmp_path: Path) -> None:
    for number in range(20):
        found: list[Claim | None] = []
        barrier = threading.Barrier(8)

        def take(
            name: str = f"run{number}", found: list[Claim | None] = found, barrier: threading.Barrier = barrier
        ) -> None:
            claims = Claims(tmp_path)
            barrier.wait()
            found.append(claims.take(name))

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(claim is not None for claim in found) <= 1
        assert (Claims(tmp_path).take(f"run{number}") is None) == any(found)


def test_release_and_names_that_begin_alike(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    claim = claims.take("a.seed1")
    assert claim is not None
    assert claims.take("a.seed1") is None
    assert claims.take("a") is not None
    assert claims.take("a.seed1.x") is not None
    claim.release()
    assert claims.take("a.seed1") is not None


def test_stale_claim_is_taken_over_and_its_owner_notices(tmp_path: Path) -> None:
    claims = Claims(tmp_path, stale_after=30)
    old = claims.take("run")
    assert old is not None
    assert old.beat()
    past = time.time() - 60
    os.utime(old.path, (past, past))
    new = claims.take("run")
    assert new is not None
    assert not old.beat()
    old.release()
    assert new.is_held()
    assert claims.take("run") is None
    new.release()
    assert not list(tmp_path.glob("*.json"))


def test_claim_of_a_process_that_is_gone_is_stale_at_once(tmp_path: Path) -> None:
    program = "import sys, pathlib; from diffusion_mf.lab.experiments.claims import Claims; Claims(pathlib.Path(sys.argv[1])).take('run')"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    claims = Claims(tmp_path, stale_after=3600)
    path = next(tmp_path.glob("*.json"))
    text = path.read_text()
    # From another machine its number says nothing: the age decides.
    path.write_text(json.dumps({**json.loads(text), "machine": "elsewhere"}))
    assert claims.take("run") is None
    path.write_text(text)
    assert claims.take("run") is not None


def test_adopted_claim_belongs_to_the_adopter(tmp_path: Path) -> None:
    claim = Claims(tmp_path).take("run")
    assert claim is not None
    program = (
        "import sys, pathlib; from diffusion_mf.lab.experiments.claims import Claim;"
        "assert Claim(pathlib.Path(sys.argv[1]), sys.argv[2]).adopt()"
    )
    subprocess.run([sys.executable, "-c", program, str(claim.path), claim.token], check=True)
    # The adopter has ended, though the process that made the claim goes on.
    assert Claims(tmp_path, stale_after=3600).take("run") is not None
    assert Claim(claim.path, "another token").adopt() is False
