// HTTPS of HttpServer: responses, streams, close_notify, clients that disconnect or never start.
#include <fmt/core.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "net/asio_loop.h"
#include "net/http_server.h"
#include "net/tls_identity.h"
#include "net/websocket.h"
#include "net/websocket_client_test.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;

template <auto kFree>
struct TlsDeleter {
  template <class T>
  void operator()(T* t) const {
    kFree(t);
  }
};
using TlsKey = std::unique_ptr<EVP_PKEY, TlsDeleter<EVP_PKEY_free>>;
using TlsCertificate = std::unique_ptr<X509, TlsDeleter<X509_free>>;
using TlsContext = std::unique_ptr<SSL_CTX, TlsDeleter<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, TlsDeleter<SSL_free>>;
using Memory = std::unique_ptr<BIO, TlsDeleter<BIO_free_all>>;

std::string text_of(BIO* memory) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(memory, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

// A self-signed certificate and its key, in PEM.
struct Pem {
  explicit Pem(const char* name) {
    const TlsKey pair(EVP_EC_gen("P-256"));
    const TlsCertificate made(X509_new());
    X509* x = made.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, pair.get());
    X509_NAME* subject = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509_set_issuer_name(x, subject);
    X509_sign(x, pair.get(), EVP_sha256());
    const Memory out(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(out.get(), x);
    certificate = text_of(out.get());
    const Memory secret(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(secret.get(), pair.get(), nullptr, nullptr, 0, nullptr, nullptr);
    key = text_of(secret.get());
    const Memory locked(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(locked.get(), pair.get(), EVP_aes_128_cbc(),
                             reinterpret_cast<const unsigned char*>("word"), 4, nullptr, nullptr);
    locked_key = text_of(locked.get());
  }
  std::string certificate, key, locked_key;
};

struct ServerFixture {
  explicit ServerFixture(HttpServer::Handler handler, HttpServer::Options options = {}) {
    std::signal(SIGPIPE, SIG_IGN);
    identity = *TlsIdentity::make(pem.certificate, pem.key);
    options.tls = identity;
    server = std::make_unique<HttpServer>(loop, std::move(handler), std::move(options));
    port = server->listen_tcp("127.0.0.1", 0).value_or(0);
    thread = std::thread([this] { loop.run(); });
  }
  ~ServerFixture() {
    on_loop([this] { server.reset(); });
    loop.stop();
    thread.join();
  }
  void on_loop(std::function<void()> task) {
    std::promise<void> done;
    loop.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  Pem pem{"first"};
  std::shared_ptr<TlsIdentity> identity;
  AsioLoop loop;
  std::unique_ptr<HttpServer> server;
  std::uint16_t port = 0;
  std::thread thread;
};

// A client built on OpenSSL only.
class Client {
 public:
  explicit Client(std::uint16_t port, int newest = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())),
        fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SSL_CTX_set_max_proto_version(context_.get(), newest);
    if (newest < TLS1_2_VERSION) {
      SSL_CTX_set_min_proto_version(context_.get(), newest);
      SSL_CTX_set_cipher_list(context_.get(), "ALL:@SECLEVEL=0");
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool handshake() {
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_);
    return SSL_connect(ssl_.get()) == 1;
  }
  // The common name of the server's certificate.
  std::string name() {
    const TlsCertificate shown(SSL_get1_peer_certificate(ssl_.get()));
    char text[64] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, text,
                              sizeof text);
    return text;
  }
  bool send(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  // Reads until the server closes. `whole`: the server sent close_notify.
  std::string read_rest(bool* whole = nullptr) {
    std::string got;
    char buffer[4096];
    int n = 0;
    while ((n = SSL_read(ssl_.get(), buffer, sizeof buffer)) > 0) {
      got.append(buffer, static_cast<std::size_t>(n));
    }
    if (whole != nullptr) *whole = SSL_get_error(ssl_.get(), n) == SSL_ERROR_ZERO_RETURN;
    return got;
  }
  std::string read_until(std::string_view end) {
    std::string got;
    char byte = 0;
    while (!got.ends_with(end) && SSL_read(ssl_.get(), &byte, 1) == 1) got += byte;
    return got;
  }
  void shut_down() { SSL_shutdown(ssl_.get()); }
  int fd() const { return fd_; }

 private:
  TlsContext context_;
  int fd_;
  Ssl ssl_;
};

HttpServer::Handler tls_echo() {
  return [](HttpRequest request, Responder responder) {
    HttpResponse response;
    response.body = request.path.empty() ? request.body : request.path[0];
    std::move(responder).answer(std::move(response));
  };
}

AE_TEST("tls/requests on one connection are answered, and close_notify ends it") {
  ServerFixture fixture(tls_echo());
  Client client(fixture.port);
  ASSERT_TRUE(client.handshake());
  EXPECT_EQ(client.name(), "first");
  ASSERT_TRUE(client.send("GET /one HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_TRUE(client.read_until("one").starts_with("HTTP/1.1 200 OK\r\n"));
  ASSERT_TRUE(client.send("GET /two HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  bool whole = false;
  EXPECT_TRUE(client.read_rest(&whole).ends_with("two"));
  EXPECT_TRUE(whole) << "close_notify was received";
}

AE_TEST("tls/large bodies are received and sent") {
  ServerFixture fixture(tls_echo(), {.limits = {.body_max = 4u << 20}});
  Client client(fixture.port);
  ASSERT_TRUE(client.handshake());
  const std::string body(3u << 20, 'x');
  std::thread writer([&] {
    client.send(fmt::format(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.size()));
    client.send(body);
  });
  writer.join();
  EXPECT_TRUE(client.read_rest().ends_with(body));
}

AE_TEST("tls/a stream is delivered incrementally") {
  HttpStream stream;
  std::promise<void> begun;
  ServerFixture fixture([&](HttpRequest, Responder responder) {
    stream = std::move(responder).begin({});
    stream.write("first");
    begun.set_value();
  });
  Client client(fixture.port);
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  begun.get_future().wait();
  EXPECT_TRUE(client.read_until("first").ends_with("first"));
  fixture.on_loop([&] {
    stream.write("second");
    stream.end();
  });
  bool whole = false;
  EXPECT_NE(client.read_rest(&whole).find("second"), std::string::npos);
  EXPECT_TRUE(whole);
}

AE_TEST("tls/a WebSocket sends and receives texts, and is closed with close_notify") {
  std::unique_ptr<WebSocket> kept;
  ServerFixture fixture([&](HttpRequest request, Responder responder) {
    kept = WebSocket::accept(request, std::move(responder), http_server_test::kSubprotocol,
                             {.on_text = [&](std::string text) { kept->send(text); },
                              .on_drained = {},
                              .on_closed = {},
                              .on_stop = {}},
                             {});
  });
  Client client(fixture.port);
  ASSERT_TRUE(client.handshake());
  client.send(http_server_test::upgrade_request());
  client.read_until("\r\n\r\n");
  const std::string text(300, 'x');
  client.send(http_server_test::client_frame(text));
  EXPECT_TRUE(client.read_until(text).ends_with(text));
  client.send(http_server_test::client_frame(http_server_test::close_payload(1000), 0x88));
  EXPECT_EQ(http_server_test::close_code_in(client.read_rest()), 1000u);
  fixture.on_loop([&] {
    EXPECT_FALSE(kept->is_open());
    kept.reset();
  });
}

AE_TEST("tls/clients that disconnect with or without close_notify are released") {
  std::promise<void> left;
  std::optional<Responder> kept;
  ServerFixture fixture([&](HttpRequest, Responder responder) {
    responder.on_closed([&] { left.set_value(); });
    kept.emplace(std::move(responder));
  });
  {
    Client client(fixture.port);
    ASSERT_TRUE(client.handshake());
    ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    client.shut_down();
  }
  EXPECT_EQ(left.get_future().wait_for(30s), std::future_status::ready);
  fixture.on_loop([&] { kept.reset(); });
  {
    Client never(fixture.port);
  }
  {
    Client nonsense(fixture.port);
    EXPECT_GT(::send(nonsense.fd(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 0);
    char byte = 0;
    while (::recv(nonsense.fd(), &byte, 1, 0) > 0) {
    }
  }
  Client good(fixture.port);
  EXPECT_TRUE(good.handshake());
}

AE_TEST("tls/an incomplete handshake times out") {
  ServerFixture fixture(tls_echo(), {.head_timeout = 50ms});
  Client client(fixture.port);
  char byte = 0;
  EXPECT_EQ(::recv(client.fd(), &byte, 1, 0), 0) << "the server closed the connection";
}

AE_TEST("tls/TLS versions before 1.2 are rejected") {
  ServerFixture fixture(tls_echo());
  Client old(fixture.port, TLS1_1_VERSION);
  EXPECT_FALSE(old.handshake());
  Client fine(fixture.port, TLS1_2_VERSION);
  EXPECT_TRUE(fine.handshake());
}

AE_TEST("tls/a request rejected during its body receives the response") {
  ServerFixture fixture(tls_echo(), {.limits = {.body_max = 1000}});
  Client client(fixture.port);
  ASSERT_TRUE(client.handshake());
  client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n");
  client.send(std::string(200000, 'x'));
  EXPECT_TRUE(client.read_rest().starts_with("HTTP/1.1 413"));
}

AE_TEST("tls/stop() finishes responses and sends close_notify") {
  std::optional<Responder> kept;
  std::promise<void> came;
  ServerFixture fixture([&](HttpRequest, Responder responder) {
    kept.emplace(std::move(responder));
    came.set_value();
  });
  Client client(fixture.port), idle(fixture.port);
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(idle.handshake());
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  came.get_future().wait();
  std::promise<void> stopped;
  fixture.on_loop([&] {
    fixture.server->stop(10s, [&] { stopped.set_value(); });
    std::move(*kept).answer({.body = "late"});
  });
  bool whole = false;
  EXPECT_TRUE(client.read_rest(&whole).ends_with("late"));
  EXPECT_TRUE(whole);
  client.shut_down();
  shutdown(client.fd(), SHUT_RDWR);
  EXPECT_EQ(stopped.get_future().wait_for(30s), std::future_status::ready);
}

AE_TEST("tls/a replaced certificate is used for new connections") {
  ServerFixture fixture(tls_echo());
  Client before(fixture.port);
  ASSERT_TRUE(before.handshake());
  const Pem next("second");
  fixture.on_loop([&] {
    fixture.identity->replace(std::move(**TlsIdentity::make(next.certificate, next.key)));
  });
  Client after(fixture.port);
  ASSERT_TRUE(after.handshake());
  EXPECT_EQ(after.name(), "second");
  ASSERT_TRUE(before.send("GET /still HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_TRUE(before.read_until("still").ends_with("still"));
}

AE_TEST("tls/an invalid certificate or key is rejected, and errors contain no key bytes") {
  const Pem a("a"), b("b");
  const auto rejection = [](const std::string& certificate, const std::string& key) {
    const auto made = TlsIdentity::make(certificate, key);
    EXPECT_FALSE(made);
    return made ? std::string() : made.error().message;
  };
  EXPECT_NE(rejection("", a.key).find("certificate"), std::string::npos);
  EXPECT_NE(rejection(a.key, a.key).find("certificate"), std::string::npos);
  EXPECT_TRUE(rejection(a.certificate, "").starts_with("the key"));
  EXPECT_TRUE(rejection(a.certificate, a.certificate).starts_with("the key"));
  EXPECT_TRUE(rejection(a.certificate, a.locked_key).starts_with("the key"));
  EXPECT_EQ(rejection(a.certificate, b.key).find("the key does not match the certificate"), 0u);
  std::string cut = a.key;
  cut.resize(cut.size() / 2);
  const std::string message = rejection(a.certificate, cut);
  EXPECT_EQ(message.find(a.key.substr(40, 20)), std::string::npos);
}

}  // namespace
}  // namespace ae::net
