// A WebSocket client (RFC 6455) over TCP, TLS or a Unix socket: text messages that are not fragmented, no extensions.
import { isUtf8 } from "node:buffer";
import { createHash, randomBytes } from "node:crypto";
import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { ConnectionFailed } from "./errors.ts";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const HEAD_MAX = 16 << 10; // bytes of the answer to the upgrade
const CONTROL_MAX = 125;
const HANDSHAKE_MS = 10_000;
const CLOSE_MS = 2_000;

const OPCODE = { text: 1, close: 8, ping: 9, pong: 10 } as const;

export interface WebSocketTarget {
  /** `http://`, `https://`, `ws://` or `wss://`; its path is replaced. Or a Unix socket. */
  url?: string | undefined;
  socket?: string | undefined;
  path: string;
  subprotocol: string;
  headers?: Record<string, string>;
  messageMax: number;
}

export interface WebSocketListener {
  onMessage(text: string): void;
  /** Something came: a message, a ping or a pong. */
  onAlive?(): void;
  /** Called once. Nothing is received after it. */
  onClose(code: number, reason: string): void;
}

function openSocket(target: WebSocketTarget): { socket: Socket; host: string; ready: string } {
  if (target.socket !== undefined) {
    return { socket: connectTcp({ path: target.socket }), host: "localhost", ready: "connect" };
  }
  const url = URL.canParse(target.url ?? "") ? new URL(target.url as string) : undefined;
  if (url === undefined) throw new ConnectionFailed("usage", `AETHERIS_URL is not a URL: "${target.url}"`);
  const isSecure = url.protocol === "https:" || url.protocol === "wss:";
  if (!isSecure && url.protocol !== "http:" && url.protocol !== "ws:") {
    throw new ConnectionFailed(
      "usage",
      `AETHERIS_URL must begin with http://, https://, ws:// or wss://, not ${url.protocol}//`,
    );
  }
  const port = url.port === "" ? (isSecure ? 443 : 80) : Number(url.port);
  const host = url.hostname.replace(/^\[|\]$/g, "");
  return isSecure
    ? {
        socket: connectTls({ host, port, servername: host, ALPNProtocols: ["http/1.1"] }),
        host: url.host,
        ready: "secureConnect",
      }
    : { socket: connectTcp({ host, port }), host: url.host, ready: "connect" };
}

/** One open connection. */
export class WebSocketClient {
  private readonly socket: Socket;
  private readonly listener: WebSocketListener;
  private readonly messageMax: number;
  private pieces: Buffer[] = [];
  private held = 0; // bytes in `pieces`
  private isClosed = false;
  private isClosing = false;

  private constructor(socket: Socket, listener: WebSocketListener, messageMax: number) {
    this.socket = socket;
    this.listener = listener;
    this.messageMax = messageMax;
    socket.on("error", (error) => this.end(1006, error.message));
    socket.on("close", () => this.end(1006, "the connection was lost"));
  }

  /**
   * Connects and upgrades, within 10 s. Rejects with ConnectionFailed: `unauthorized` and `forbidden` (the key is wrong
   * or has not the role), `unsupported` (the server has no such protocol), `unavailable` (anything else; try again).
   */
  static open(target: WebSocketTarget, listener: WebSocketListener): Promise<WebSocketClient> {
    return new Promise((resolve, reject) => {
      const key = randomBytes(16).toString("base64");
      const { socket, host, ready } = openSocket(target);
      socket.setNoDelay(true);
      let head = Buffer.alloc(0);
      const fail = (code: string, message: string): void => {
        clearTimeout(timer);
        socket.removeAllListeners();
        socket.on("error", () => {});
        socket.destroy();
        reject(new ConnectionFailed(code, message));
      };
      const where = target.socket ?? target.url ?? "";
      const timer = setTimeout(
        () => fail("unavailable", `${where}: no answer within ${HANDSHAKE_MS / 1000} s`),
        HANDSHAKE_MS,
      );
      socket.on("error", (error) => fail("unavailable", `${where}: ${error.message}. Is the server running?`));
      socket.on("close", () => fail("unavailable", `${where}: the connection was closed before the upgrade`));
      socket.on(ready, () => {
        const headers = { ...target.headers };
        const lines = [
          `GET ${target.path} HTTP/1.1`,
          `Host: ${host}`,
          "Upgrade: websocket",
          "Connection: Upgrade",
          `Sec-WebSocket-Key: ${key}`,
          "Sec-WebSocket-Version: 13",
          `Sec-WebSocket-Protocol: ${target.subprotocol}`,
          ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
        ];
        socket.write(`${lines.join("\r\n")}\r\n\r\n`);
      });
      socket.on("data", (bytes: Buffer) => {
        head = Buffer.concat([head, bytes]);
        const end = head.indexOf("\r\n\r\n");
        if (end < 0) {
          if (head.length > HEAD_MAX) fail("unavailable", `${where}: the answer to the upgrade is too long`);
          return;
        }
        const refusal = refusalOf(head.subarray(0, end).toString("latin1"), key, target.subprotocol);
        if (refusal !== undefined) return fail(refusal.code, `${where}: ${refusal.message}`);
        clearTimeout(timer);
        socket.removeAllListeners();
        const client = new WebSocketClient(socket, listener, target.messageMax);
        resolve(client);
        // The caller gets the client before its first message.
        const rest = head.subarray(end + 4);
        socket.pause();
        setImmediate(() => client.begin(rest));
      });
    });
  }

  /** Sends a text message. No effect after the connection is closed. */
  send(text: string): void {
    if (!this.isClosed && !this.isClosing) this.write(OPCODE.text, Buffer.from(text));
  }

  /** The server answers with a pong: `onAlive` is called. */
  ping(): void {
    if (!this.isClosed && !this.isClosing) this.write(OPCODE.ping, Buffer.alloc(0));
  }

  /** Closes in order: waits 2 s at most for the server's answer. */
  close(code = 1000, reason = ""): void {
    if (this.isClosed || this.isClosing) return;
    this.isClosing = true;
    const payload = Buffer.alloc(2 + Buffer.byteLength(reason));
    payload.writeUInt16BE(code);
    payload.write(reason, 2);
    this.write(OPCODE.close, payload);
    setTimeout(() => this.end(code, reason), CLOSE_MS).unref();
  }

  /** Closes at once. */
  destroy(): void {
    this.end(1006, "destroyed");
  }

  private begin(rest: Buffer): void {
    this.socket.on("data", (bytes: Buffer) => this.receive(bytes));
    if (this.socket.destroyed || this.socket.readableEnded) return this.end(1006, "the connection was lost");
    if (rest.length > 0) this.receive(rest);
    this.socket.resume();
  }

  private end(code: number, reason: string): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.pieces = [];
    this.socket.removeAllListeners();
    this.socket.on("error", () => {});
    this.socket.destroy();
    this.listener.onClose(code, reason);
  }

  // The frame of a client is masked.
  private write(opcode: number, payload: Buffer): void {
    const length = payload.length;
    const extended = length < 126 ? 0 : length < 65_536 ? 2 : 8;
    const frame = Buffer.allocUnsafe(6 + extended + length);
    frame[0] = 0x80 | opcode;
    frame[1] = 0x80 | (extended === 0 ? length : extended === 2 ? 126 : 127);
    if (extended === 2) frame.writeUInt16BE(length, 2);
    if (extended === 8) frame.writeBigUInt64BE(BigInt(length), 2);
    const at = 2 + extended;
    const mask = randomBytes(4);
    mask.copy(frame, at);
    for (let i = 0; i < length; i++) frame[at + 4 + i] = (payload[i] as number) ^ (mask[i & 3] as number);
    this.socket.write(frame);
  }

  private receive(bytes: Buffer): void {
    this.pieces.push(bytes);
    this.held += bytes.length;
    while (!this.isClosed && this.readFrame());
  }

  private peek(length: number): Buffer | undefined {
    if (this.held < length) return undefined;
    if ((this.pieces[0] as Buffer).length < length) this.pieces = [Buffer.concat(this.pieces)];
    return this.pieces[0];
  }

  private take(length: number): void {
    this.held -= length;
    const rest = (this.pieces[0] as Buffer).subarray(length);
    if (rest.length > 0) this.pieces[0] = rest;
    else this.pieces.shift();
  }

  private violated(code: number, reason: string): false {
    this.isClosing = false;
    this.close(code, reason);
    this.end(code, reason);
    return false;
  }

  private readFrame(): boolean {
    const start = this.peek(2);
    if (start === undefined) return false;
    const [first, second] = [start[0] as number, start[1] as number];
    const opcode = first & 0x0f;
    if ((first & 0x70) !== 0 || (second & 0x80) !== 0)
      return this.violated(1002, "a frame with reserved bits or a mask");
    if ((first & 0x80) === 0 || opcode === 0) return this.violated(1002, "a message in several frames");
    const short = second & 0x7f;
    const extended = short < 126 ? 0 : short === 126 ? 2 : 8;
    const head = this.peek(2 + extended);
    if (head === undefined) return false;
    const length = extended === 0 ? short : extended === 2 ? head.readUInt16BE(2) : Number(head.readBigUInt64BE(2));
    if (opcode >= 8 && length > CONTROL_MAX) return this.violated(1002, "a control frame that is too long");
    if (length > this.messageMax) return this.violated(1009, "a message that is too long");
    const whole = this.peek(2 + extended + length);
    if (whole === undefined) return false;
    const payload = whole.subarray(2 + extended, 2 + extended + length);
    this.take(2 + extended + length);
    this.listener.onAlive?.();
    return this.handle(opcode, payload);
  }

  private handle(opcode: number, payload: Buffer): boolean {
    switch (opcode) {
      case OPCODE.text:
        if (!isUtf8(payload)) return this.violated(1007, "a text that is not UTF-8");
        this.listener.onMessage(payload.toString("utf8"));
        return true;
      case OPCODE.ping:
        if (!this.isClosing) this.write(OPCODE.pong, payload);
        return true;
      case OPCODE.pong:
        return true;
      case OPCODE.close: {
        const code = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
        if (!this.isClosing) this.write(OPCODE.close, payload.subarray(0, 2));
        this.socket.end();
        this.end(code, payload.subarray(2).toString("utf8"));
        return false;
      }
      default:
        return this.violated(1003, "a frame that is not text");
    }
  }
}

function refusalOf(head: string, key: string, subprotocol: string): { code: string; message: string } | undefined {
  const [status = "", ...lines] = head.split("\r\n");
  const number = /^HTTP\/1\.1 (\d{3})/.exec(status)?.[1];
  if (number === "401")
    return { code: "unauthorized", message: "the server refused the key (401). Set AETHERIS_API_KEY" };
  if (number === "403") return { code: "forbidden", message: "the key must have the role worker or admin (403)" };
  if (number === "404" || number === "426") {
    return {
      code: "unsupported",
      message: `the server has no GET /api/worker for this protocol (${number}). Update the server`,
    };
  }
  if (number !== "101") return { code: "unavailable", message: `the server answered "${status}"` };
  const headers = new Map<string, string>();
  for (const line of lines) {
    const colon = line.indexOf(":");
    if (colon > 0) headers.set(line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim());
  }
  const accept = createHash("sha1")
    .update(key + GUID)
    .digest("base64");
  if (headers.get("sec-websocket-accept") !== accept)
    return { code: "unavailable", message: "the answer is not a WebSocket's" };
  if (headers.get("sec-websocket-protocol") !== subprotocol || headers.has("sec-websocket-extensions")) {
    return { code: "unsupported", message: `the server does not speak ${subprotocol}` };
  }
  return undefined;
}
