"""nbgrader's configuration in the students' environment, as etc/jupyter/nbgrader_config.py."""

c = get_config()  # Jupyter defines this name for its configuration files.
c.CourseDirectory.course_id = "sequence_models"
c.Exchange.root = "/srv/nbgrader/exchange"
