"""An EC2 on loopback for the tests of deploy/: moto, and what it lacks for the
fleet. It prints the port that it serves and runs until its standard input ends.

Scripted faults are set by a PUT of a JSON list to /faults, which forgets those
before:

    {"action": "RunInstances", "match": {"Placement.AvailabilityZone": "us-east-1b"},
     "skip": 0, "times": 1, "code": "InsufficientInstanceCapacity", "message": "..."}

A call whose parameters hold those of match fails, after skip of them and times
times (without times: always). A GET of /faults tells how often each fault was
met.
"""

import io
import itertools
import json
import os
import sys
import tempfile
import threading
import urllib.parse
from xml.sax.saxutils import escape

CANONICAL = "099720109477"
JAMMY = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-"


def images():
    """Two jammy images, so that the newest has to be chosen."""
    for n, day in enumerate(("20260105", "20260302"), 1):
        yield {
            "ami_id": f"ami-{n:017x}",
            "name": JAMMY + day,
            "description": "Ubuntu 22.04",
            "owner_id": CANONICAL,
            "creation_date": f"{day[:4]}-{day[4:6]}-{day[6:]}T00:00:00.000Z",
            "image_location": "amazon/" + JAMMY + day,
            "image_type": "machine",
            "architecture": "x86_64",
            "hypervisor": "xen",
            "virtualization_type": "hvm",
            "platform": None,
            "public": True,
            "root_device_name": "/dev/sda1",
            "root_device_type": "ebs",
            "sriov": "simple",
            "state": "available",
        }


# moto reads its images when it is imported.
with tempfile.NamedTemporaryFile("w", suffix=".json") as catalogue:
    json.dump(list(images()), catalogue)
    catalogue.flush()
    os.environ["MOTO_AMIS_PATH"] = catalogue.name
    from moto.core.responses import ActionResult
    from moto.ec2 import ec2_backends
    from moto.ec2.exceptions import EC2ClientError
    from moto.ec2.models.security_groups import SecurityGroupRule
    from moto.ec2.responses import EC2Response
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    # The images are read once more by the backend of each region.
    ec2_backends["123456789012"]["us-east-1"]


class PlacementGroups:
    """The placement groups of the account, and who is in them."""

    def __init__(self):
        self.groups = {}
        self.serial = itertools.count(1)

    def get(self, name):
        if name not in self.groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        return self.groups[name]

    def create(self, name, strategy, tags, arn):
        if name in self.groups:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        self.groups[name] = {
            "GroupName": name,
            "GroupId": f"pg-{next(self.serial):017x}",
            "GroupArn": arn,
            "State": "available",
            "Strategy": strategy,
            "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
        }
        return self.groups[name]

    def members(self, backend, name):
        for reservation in backend.reservations.values():
            for instance in reservation.instances:
                if instance.placement.group_name == name and instance.state not in ("shutting-down", "terminated"):
                    yield instance

    def delete(self, backend, name):
        self.get(name)
        if any(self.members(backend, name)):
            raise EC2ClientError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
        del self.groups[name]

    def admit(self, backend, name, zone):
        """A cluster placement group lies in one zone."""
        if self.get(name)["Strategy"] != "cluster":
            return
        for other in self.members(backend, name):
            if other.placement.zone != zone:
                raise EC2ClientError(
                    "InvalidParameterValue",
                    f"Placement group '{name}' is in {other.placement.zone} and takes no instance in {zone}.",
                )


PLACEMENT = PlacementGroups()
run_instances_of_moto = EC2Response.run_instances


def create_placement_group(self):
    name = self._get_param("GroupName")
    tags = self._parse_tag_specification("placement-group").get("placement-group", {})
    arn = f"arn:aws:ec2:{self.region}:{self.current_account}:placement-group/{name}"
    return ActionResult({"PlacementGroup": PLACEMENT.create(name, self._get_param("Strategy", "cluster"), tags, arn)})


def describe_placement_groups(self):
    names = self._get_param("GroupNames", [])
    chosen = [PLACEMENT.get(n) for n in names] if names else list(PLACEMENT.groups.values())
    ids = self._get_param("GroupIds", [])
    return ActionResult({"PlacementGroups": [g for g in chosen if not ids or g["GroupId"] in ids]})


def delete_placement_group(self):
    PLACEMENT.delete(self.ec2_backend, self._get_param("GroupName"))
    return ActionResult({})


def run_instances(self):
    group = self._get_param("Placement.GroupName", "")
    if group:
        nics = self._get_param("NetworkInterfaces", [])
        subnet = self._get_param("SubnetId") or nics[0]["SubnetId"]
        PLACEMENT.admit(self.ec2_backend, group, self.ec2_backend.get_subnet(subnet).availability_zone)
    answer = run_instances_of_moto(self)
    for instance in answer.result.instances:
        instance.placement.group_name = group
        # With a public address the groups are those of the interface, and moto
        # leaves them there.
        if not instance.security_groups:
            instance.security_groups = list(instance.nics[0].group_set)
    return answer


def description(rule):
    """moto shows that of a rule for addresses only."""
    return rule.ip_range.get("Description") or rule.source_group.get("Description")


EC2Response.create_placement_group = create_placement_group
EC2Response.describe_placement_groups = describe_placement_groups
EC2Response.delete_placement_group = delete_placement_group
EC2Response.run_instances = run_instances
SecurityGroupRule.description = property(description)


class Faults:
    """Answers calls that are to fail; the others go on to the application."""

    def __init__(self, application):
        self.application = application
        self.faults = []
        self.met = []
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if environ["PATH_INFO"] == "/faults":
            with self.lock:
                if environ["REQUEST_METHOD"] == "PUT":
                    self.faults = json.loads(body)
                    self.met = [0] * len(self.faults)
                text = json.dumps(self.met)
            start_response("200 OK", [("Content-Type", "application/json")])
            return [text.encode()]
        call = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace")))
        fault = self.fault(call)
        if fault is None:
            return self.application(environ, start_response)
        error = f"<Error><Code>{escape(fault['code'])}</Code><Message>{escape(fault['message'])}</Message></Error>"
        if call.get("Version") == "2011-06-15":  # STS
            text = f"<ErrorResponse>{error}<RequestId>double</RequestId></ErrorResponse>"
        else:
            text = f"<Response><Errors>{error}</Errors><RequestID>double</RequestID></Response>"
        start_response("400 Bad Request", [("Content-Type", "text/xml")])
        return [text.encode()]

    def fault(self, call):
        with self.lock:
            for n, fault in enumerate(self.faults):
                if fault["action"] not in ("*", call.get("Action")):
                    continue
                if any(call.get(key) != value for key, value in fault.get("match", {}).items()):
                    continue
                self.met[n] += 1
                skip = fault.get("skip", 0)
                if skip < self.met[n] <= skip + fault.get("times", float("inf")):
                    return fault
        return None


class Quiet(MotoRequestHandler):
    def log_request(self, *args):
        pass


def main():
    application = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


main()
