"""Ray's command line without the commands that only users of Ray call: `python -m batchyard.local.ray_command start …`.

Ray leaves a group of commands out if it cannot import its module, as in an installation without Ray Serve. These take
two thirds of the CPU time that `ray start` needs for its imports, and a stack waits for them.
"""

import sys

_LEFT_OUT = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    sys.modules.update(dict.fromkeys(_LEFT_OUT))  # type: ignore[arg-type]  # None: its import raises ImportError
    from ray.scripts.scripts import main as ray

    ray()


if __name__ == "__main__":
    main()
