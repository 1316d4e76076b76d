"""Serves the OpenID provider Canaille, whose database is in memory, for the tests of the console.

The argument is the port. Each line of the standard input is an address to which the client of the
console may send people back. Each line of the standard output says that the provider is ready, the
first one when it accepts connections.
"""

import sys
import threading

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from werkzeug.serving import WSGIRequestHandler, make_server

PEOPLE = {"alice": ["limits-admins"], "sam": ["shop-team"], "nora": ["cooks"]}


class QuietHandler(WSGIRequestHandler):
    def log(self, *_arguments):
        pass


port = int(sys.argv[1])
app = create_app(
    config={
        "SECRET_KEY": "secret of the sessions of the provider",
        "SERVER_NAME": f"localhost:{port}",
        "PREFERRED_URL_SCHEME": "http",
        "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False},
        # By default, clients on the loopback need no consent.
        "CANAILLE_OIDC": {"TRUSTED_DOMAINS": []},
    }
)
with app.app_context(), Backend.instance.session():
    people = {
        name: models.User(
            user_name=name,
            formatted_name=name.title(),
            family_name=name.title(),
            emails=[f"{name}@example.com"],
            password=f"password of {name}",
        )
        for name in PEOPLE
    }
    for person in people.values():
        Backend.instance.save(person)
    for group in {group for groups in PEOPLE.values() for group in groups}:
        members = [people[name] for name, groups in PEOPLE.items() if group in groups]
        Backend.instance.save(models.Group(display_name=group, members=members))
    client = models.Client(
        client_id="rl-console",
        client_secret="secret-of-the-console",
        client_name="Rate limits",
        redirect_uris=[],
        grant_types=["authorization_code"],
        response_types=["code"],
        scope=["openid", "profile", "email", "groups"],
        token_endpoint_auth_method="client_secret_basic",
    )
    Backend.instance.save(client)
    client.audience = [client]
    Backend.instance.save(client)

server = make_server("localhost", port, app, threaded=True, request_handler=QuietHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    with app.app_context(), Backend.instance.session():
        client = Backend.instance.get(models.Client, client_id="rl-console")
        client.redirect_uris = [*client.redirect_uris, line.strip()]
        Backend.instance.save(client)
    print("ready", flush=True)
