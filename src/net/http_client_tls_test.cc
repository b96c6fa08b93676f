// HTTPS: which certificates the client trusts, and connections that end without close_notify.
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "net/asio_loop.h"
#include "net/http_client.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;

template <auto kFree>
struct Deleter {
  template <class T>
  void operator()(T* t) const {
    kFree(t);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Deleter<SSL_CTX_free>>;

// A self-signed certificate for `name` (an IP address), written to a CA file.
struct Identity {
  explicit Identity(const char* name) : key(EVP_EC_gen("P-256")), certificate(X509_new()) {
    X509* x = certificate.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key.get());
    X509_NAME* subject = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x, subject);
    const std::string names = fmt::format("IP:{}", name);
    X509_EXTENSION* extension =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    X509_add_ext(x, extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(x, key.get(), EVP_sha256());
    const int fd = mkstemp(file.data());
    FILE* out = fdopen(fd, "w");
    PEM_write_X509(out, x);
    std::fclose(out);
  }
  ~Identity() { unlink(file.c_str()); }

  Key key;
  Certificate certificate;
  std::string file = ::testing::TempDir() + "ae_tls_test.XXXXXX";
};

// Answers one connection with `bytes`, then closes it, with or without close_notify.
class TlsServer {
 public:
  TlsServer(const Identity& identity, std::string bytes, bool send_close_notify)
      : context_(SSL_CTX_new(TLS_server_method())),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::signal(SIGPIPE,
                SIG_IGN);  // a disconnect during the handshake must not end this process
    SSL_CTX_use_certificate(context_.get(), identity.certificate.get());
    SSL_CTX_use_PrivateKey(context_.get(), identity.key.get());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, generic, size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, generic, &size);
    port = ntohs(address.sin_port);
    thread_ = std::thread(
        [this, bytes = std::move(bytes), send_close_notify] { serve(bytes, send_close_notify); });
  }
  ~TlsServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  int port = 0;
  std::atomic<int> arrivals = 0;

 private:
  void serve(const std::string& bytes, bool send_close_notify) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    SSL* ssl = SSL_new(context_.get());
    SSL_set_fd(ssl, fd);
    std::string seen;
    char buffer[4096];
    if (SSL_accept(ssl) == 1) {
      while (seen.find("\r\n\r\n") == std::string::npos) {
        const int n = SSL_read(ssl, buffer, sizeof buffer);
        if (n <= 0) break;
        seen.append(buffer, static_cast<std::size_t>(n));
      }
      if (!seen.empty()) {
        ++arrivals;
        SSL_write(ssl, bytes.data(), static_cast<int>(bytes.size()));
        if (send_close_notify) SSL_shutdown(ssl);
      }
    }
    SSL_free(ssl);
    close(fd);
  }

  Context context_;
  int listener_;
  std::thread thread_;
};

HttpResult tls_get(const TlsServer& server, std::string ca_file) {
  AsioLoop loop;
  HttpClient client(loop, {.ca_file = std::move(ca_file)});
  HttpCall call;
  call.method = "POST";
  call.body = "";
  call.url = fmt::format("https://127.0.0.1:{}/", server.port);
  HttpResult seen;
  client.start(call, [&](HttpResult answer) {
    seen = std::move(answer);
    loop.stop();
  });
  loop.run();
  return seen;
}

AE_TEST("client/a call over TLS to a trusted server completes") {
  const Identity identity("127.0.0.1");
  const TlsServer server(identity, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true);
  const HttpResult a = tls_get(server, identity.file);
  EXPECT_EQ(a.phase, HttpPhase::complete) << a.error;
  EXPECT_EQ(a.body, "ok");
  EXPECT_EQ(server.arrivals, 1);
}

AE_TEST("client/an untrusted certificate or a wrong host name fails before the request") {
  const Identity identity("127.0.0.1"), other("127.0.0.2");
  const TlsServer stranger(identity, "", true);
  HttpResult a = tls_get(stranger, "");
  EXPECT_EQ(a.phase, HttpPhase::tls_failed) << a.error;
  EXPECT_EQ(stranger.arrivals, 0);
  const TlsServer misnamed(other, "", true);
  a = tls_get(misnamed, other.file);
  EXPECT_EQ(a.phase, HttpPhase::tls_failed) << a.error;
  EXPECT_EQ(misnamed.arrivals, 0);
}

AE_TEST("client/a TLS response without length is cut off unless close_notify ends it") {
  const Identity identity("127.0.0.1");
  const std::string answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf of";
  const TlsServer cut(identity, answer, false), whole(identity, answer, true);
  HttpResult a = tls_get(cut, identity.file);
  EXPECT_EQ(a.phase, HttpPhase::cut_off) << a.error;
  EXPECT_EQ(a.status, 200);
  a = tls_get(whole, identity.file);
  EXPECT_EQ(a.phase, HttpPhase::complete) << a.error;
}

}  // namespace
}  // namespace ae::net
