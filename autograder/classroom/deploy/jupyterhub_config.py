"""JupyterHub for the course: students with accounts of their own, several graders of one course.

docs/jupyterhub.md says what must be there. As root, in a folder that keeps the hub's state:

    F=/srv/sequence_models
    $F/.venv/bin/jupyterhub -f $F/autograder/classroom/deploy/jupyterhub_config.py

Passwords are those of the machine (PAM); put your university's authenticator in their place. Who
belongs to which group of the machine decides the rest, read when the hub starts:

    nbgrader-sequence_models     students: fetch, submit, read feedback
    formgrade-sequence_models    graders: the formgrader at /services/sequence_models
"""

import grp
import sys
from pathlib import Path

c = get_config()  # JupyterHub defines this name for its configuration files.

COURSE = "sequence_models"
FOLDER = Path(__file__).resolve().parents[3]  # its owner grades; nobody else may enter it
STUDENTS_ENVIRONMENT = Path("/opt") / COURSE
IDLE = 2 * 60 * 60  # seconds
STUDENTS, GRADERS = f"nbgrader-{COURSE}", f"formgrade-{COURSE}"

c.JupyterHub.bind_url = "http://127.0.0.1:8000"  # behind a web server that speaks HTTPS
c.JupyterHub.authenticator_class = "pam"
c.LocalAuthenticator.allowed_groups = {STUDENTS, GRADERS}
c.JupyterHub.load_groups = {
    name: {"users": grp.getgrnam(name).gr_mem} for name in (STUDENTS, GRADERS)
}

# Everybody has a server with the students' environment, which has no solution in it. Servers that
# start at once wait for each other, longer than the hub does by itself.
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.default_url = "/lab"

# Spawners of containers and of systemd let nobody have more than this. Servers that are processes
# of this machine are started with a limit for each process; a notebook's kernel is one.
MEMORY = 4 << 30
c.Spawner.mem_limit = MEMORY
c.Spawner.cmd = [
    *("prlimit", f"--data={MEMORY}"),
    str(STUDENTS_ENVIRONMENT / "bin" / "jupyterhub-singleuser"),
]

# The formgrader and feedback are frames in JupyterLab's page, which JupyterHub does not permit.
FRAMES = {"headers": {"Content-Security-Policy": "frame-ancestors 'self'"}}
c.Spawner.args = [
    f"--ServerApp.tornado_settings={FRAMES}",
    # A kernel without work ends, also while its page is open, and then its server: that gives
    # their memory to others. What was saved stays.
    f"--MappingKernelManager.cull_idle_timeout={IDLE}",
    "--MappingKernelManager.cull_connected=True",
    f"--ServerApp.shutdown_no_activity_timeout={IDLE}",
]

# The course has one server, which its graders share. It runs as the owner of the folder.
c.JupyterHub.services = [
    {
        "name": COURSE,
        "url": "http://127.0.0.1:9999",
        "command": [
            *(sys.executable, "-m", "jupyterhub.singleuser"),
            f"--ServerApp.root_dir={FOLDER}",
            f"--ServerApp.tornado_settings={FRAMES}",
        ],
        "user": FOLDER.owner(),
        "cwd": str(FOLDER),
        # nbgrader finds the folder's configuration from every folder below it.
        "environment": {"JUPYTER_CONFIG_PATH": str(FOLDER), "JUPYTERHUB_DEFAULT_URL": "/lab"},
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": [f"access:services!service={COURSE}"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": GRADERS,
        "groups": [GRADERS],
        "scopes": [f"access:services!service={COURSE}", f"read:services!service={COURSE}"],
    }
]
