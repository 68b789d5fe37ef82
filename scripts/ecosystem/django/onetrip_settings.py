"""Settings for Django's own tests: the database "default" is the one that is compared, which is there already."""

import os

_SERVER = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "postgres",
    "USER": "postgres",
    "HOST": "127.0.0.1",
    "PORT": os.environ["ECOSYSTEM_PORT"],
}
DATABASES = {
    "default": {**_SERVER, "TEST": {"NAME": os.environ["ECOSYSTEM_DATABASE"]}},
    # Some tests want a second one.  In a region it is that server's own.
    "other": {**_SERVER, "TEST": {"NAME": os.environ["ECOSYSTEM_DATABASE"] + "_other"}},
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SECRET_KEY = "ecosystem"
TEST_RUNNER = "onetrip_runner.Runner"
USE_TZ = False
