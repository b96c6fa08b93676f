// HttpParser: what is accepted, and what is rejected with which status.
#include "net/http_parser.h"

#include <fmt/core.h>

#include <string>
#include <tuple>
#include <vector>

#include "testing/test.h"

namespace ae::net {
namespace {

using State = HttpParser::State;

struct Parsed {
  State state = State::reading;
  HttpRequest request;
  int status = 0;
  std::string rest;  // not consumed
  bool keep_alive = false;
};

Parsed parse(std::string_view bytes, std::size_t step, const HttpLimits& limits = {}) {
  HttpParser parser(limits);
  std::size_t at = 0;
  while (at < bytes.size() && parser.state() == State::reading) {
    at += parser.feed(bytes.substr(at, step));
  }
  Parsed parsed;
  parsed.state = parser.state();
  parsed.rest = bytes.substr(at);
  if (parsed.state == State::refused) parsed.status = parser.refusal().status;
  if (parsed.state == State::request) {
    parsed.keep_alive = parser.keep_alive();
    parsed.request = parser.take();
    EXPECT_EQ(parser.state(), State::reading);
    EXPECT_FALSE(parser.has_begun());
  }
  return parsed;
}

// Parses the bytes at once and byte by byte; both must agree.
Parsed parse(std::string_view bytes) {
  const Parsed whole = parse(bytes, bytes.size());
  const Parsed bitwise = parse(bytes, 1);
  EXPECT_EQ(whole.state, bitwise.state) << bytes.substr(0, 200);
  EXPECT_EQ(whole.status, bitwise.status) << bytes.substr(0, 200);
  EXPECT_EQ(whole.request.body, bitwise.request.body);
  return whole;
}

std::string parsed_get(std::string_view target) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target);
}

std::string post(std::string_view headers, std::string_view body = {}) {
  return fmt::format("POST /x HTTP/1.1\r\nHost: a\r\n{}\r\n{}", headers, body);
}

std::string chunked(std::string_view body) { return post("Transfer-Encoding: chunked\r\n", body); }

AE_TEST("http parser/a request is parsed and decoded") {
  const Parsed p = parse(
      "PUT /api/jobs/a%2Fb%20%C3%A4/?x=1&y=a%26b+c&x=2&z&=q HTTP/1.1\r\nHost: localhost:7070\r\n"
      "Content-LENGTH: 3\r\nX-Empty:\r\nX-Pad: \t a b\t \r\n\r\nabcNEXT");
  ASSERT_EQ(p.state, State::request) << p.status;
  EXPECT_EQ(p.request.method, "PUT");
  EXPECT_EQ(p.request.path, (std::vector<std::string>{"api", "jobs", "a/b ä", ""}));
  ASSERT_EQ(p.request.query.size(), 5u);
  EXPECT_EQ(p.request.query_value("x"), "1");
  EXPECT_EQ(p.request.query_value("y"), "a&b c");
  EXPECT_EQ(p.request.query_value("z"), "");
  EXPECT_EQ(p.request.query_value("nothing"), std::nullopt);
  EXPECT_EQ(p.request.header("x-empty"), "");
  EXPECT_EQ(p.request.header("X-PAD"), "a b");
  EXPECT_EQ(p.request.body, "abc");
  EXPECT_EQ(p.rest, "NEXT");
  EXPECT_TRUE(p.keep_alive);
}

AE_TEST("http parser/paths keep empty segments and decode once") {
  EXPECT_TRUE(parse(parsed_get("/")).request.path.empty());
  EXPECT_EQ(parse(parsed_get("/a")).request.path.size(), 1u);
  EXPECT_EQ(parse(parsed_get("//")).request.path, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(parse(parsed_get("/?")).request.query.size(), 0u);
  EXPECT_EQ(parse(parsed_get("/%252e")).request.path[0], "%2e");
}

AE_TEST("http parser/chunks are joined, their extensions and trailers are ignored") {
  const Parsed p =
      parse(chunked("3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nNEXT"));
  ASSERT_EQ(p.state, State::request) << p.status;
  EXPECT_EQ(p.request.body, "abc0123456789");
  EXPECT_FALSE(p.request.header("X-Sum"));
  EXPECT_EQ(p.rest, "NEXT");
  EXPECT_EQ(parse(chunked("0\r\n\r\n")).state, State::request);
}

AE_TEST("http parser/HTTP/1.0 and Connection: close disable keep-alive") {
  EXPECT_FALSE(parse("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_EQ(parse("GET / HTTP/1.0\r\n\r\n").state, State::request);
  EXPECT_FALSE(parse(post("Connection: x, Close\r\n")).keep_alive);
  EXPECT_TRUE(parse(post("Connection: keep-alive\r\n")).keep_alive);
}

AE_TEST("http parser/an incomplete request is neither complete nor rejected") {
  for (const std::string& whole :
       {post("Content-Length: 3\r\n", "abc"), chunked("3\r\nabc\r\n0\r\nX: y\r\n\r\n")}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_EQ(parse(std::string_view(whole).substr(0, size), 7).state, State::reading) << size;
    }
  }
}

AE_TEST("http parser/malformed and ambiguous framing is rejected with its status") {
  const std::pair<int, std::string> cases[] = {
      {400, "GET / HTTP/1.1\nHost: a\n\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n"},
      {400, "\r\n\r\nGET / HTTP/1.1\r\n"},
      {400, "GET  / HTTP/1.1\r\n"},
      {400, "GET /  HTTP/1.1\r\n"},
      {400, "GET / x HTTP/1.1\r\n"},
      {400, " GET / HTTP/1.1\r\n"},
      {400, "GET\t/ HTTP/1.1\r\n"},
      {400, "GET /\r\n"},
      {400, "GET / HTTP\r\n"},
      {400, "GET / http/1.1\r\n"},
      {505, "GET / HTTP/1.2\r\n"},
      {505, "GET / HTTP/01.1\r\n"},
      {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {400, "\x16\x03\x01\x02"},
      {405, "CONNECT a:1 HTTP/1.1\r\n"},
      {405, "TRACE / HTTP/1.1\r\n"},
      {501, "get / HTTP/1.1\r\n"},
      {501, "BREW / HTTP/1.1\r\n"},
      {400, "G@T / HTTP/1.1\r\n"},
      {400, "OPTIONS * HTTP/1.1\r\n"},
      {400, "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET http://me@a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET http://a/ HTTP/1.1\r\n\r\n"},
      {400, post(" X: folded\r\n")},
      {400, post("X: a\r\n\tfolded\r\n")},
      {400, post("X : a\r\n")},
      {400, post(": a\r\n")},
      {400, post("X\r\n")},
      {400, post("X: a\x01\r\n")},
      {400, post(std::string("X: a\0b\r\n", 8))},
      {400, post("X\x80: a\r\n")},
      {400, post("Content-Length: 3\r\nContent-Length: 3\r\n")},
      {400, post("Content-Length: 3\r\nContent-Length: 4\r\n")},
      {400, post("Content-Length: +5\r\n")},
      {400, post("Content-Length: -1\r\n")},
      {400, post("Content-Length: 0x5\r\n")},
      {400, post("Content-Length: 5, 5\r\n")},
      {400, post("Content-Length:\r\n")},
      {400, post("Content-Length: 18446744073709551616\r\n")},
      {400, post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")},
      {400, post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n")},
      {400, post("Transfer-Encoding: xchunked\r\n")},
      {400, post("Transfer-Encoding: chunked, identity\r\n")},
      {400, post("Transfer-Encoding: Chunked\x0b\r\n")},
      {400, post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")},
      {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, chunked("-2\r\n")},
      {400, chunked("0x10\r\n")},
      {400, chunked("FFFFFFFFFFFFFFFFF\r\n")},
      {413, chunked("FFFFFFFFFFFFFFFF\r\n")},
      {400, chunked("\r\n")},
      {400, chunked(" 3\r\n")},
      {400, chunked("3 \r\n")},
      {400, chunked("3\nabc\r\n")},
      {400, chunked("3\r\nabcd\r\n")},
      {400, chunked("3\r\nabc\n")},
      {400, chunked(fmt::format("3;{}\r\n", std::string(300, 'x')))},
      {400, chunked("0\r\nContent-Length: 3\r\n\r\n")},
      {400, chunked("0\r\nno trailer\r\n\r\n")},
      {400, "GET / HTTP/1.1\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
      {417, post("Expect: a miracle\r\n")},
      {501, post("Upgrade: websocket\r\n")},
      {501, "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n"},
      {415, post("Content-Encoding: gzip\r\n")},
      {413, post("Expect: 100-continue\r\nContent-Length: 99999999\r\n")},
  };
  for (const auto& [status, bytes] : cases) {
    const Parsed p = parse(bytes);
    EXPECT_EQ(p.state, State::refused) << bytes;
    EXPECT_EQ(p.status, status) << bytes;
  }
}

AE_TEST("http parser/unsafe and malformed targets are rejected") {
  for (const char* target :
       {"/%00", "/a%0d%0ab", "/../x", "/a/..", "/%2e%2e/x", "/a/%2E/", "/%c0%ae", "/%", "/%4",
        "/%zz", "/\xc3\xa4", "/%ff", "/a#b", "/?x=%00", "/?%ff", "x", "*", "/%ed%a0%80"}) {
    EXPECT_EQ(parse(parsed_get(target)).status, 400) << target;
  }
}

AE_TEST("http parser/limits are enforced while reading") {
  const auto status_of = [](const std::string& bytes, const HttpLimits& limits = {}) {
    return parse(bytes, 1000, limits).status;
  };
  EXPECT_EQ(status_of("GET /" + std::string(9000, 'x')), 414);
  EXPECT_EQ(status_of(parsed_get("/" + std::string(8192 - 14, 'x'))), 0);
  EXPECT_EQ(status_of(post("X: " + std::string(17 << 10, 'x'))), 431);
  std::string many;
  for (int i = 0; i < 99; ++i) many += "X: y\r\n";
  EXPECT_EQ(status_of(post(many)), 0);
  EXPECT_EQ(status_of(post(many + "X: y\r\n")), 431);
  std::string heavy;
  for (int i = 0; i < 30; ++i) heavy += fmt::format("X: {}\r\n", std::string(600, 'y'));
  EXPECT_EQ(status_of(post(heavy)), 431);
  EXPECT_EQ(status_of(chunked("0\r\n" + heavy)), 431);
  const HttpLimits small{.body_max = 10, .chunks_max = 3};
  const auto size = [&](std::size_t bytes) {
    return status_of(post(fmt::format("Content-Length: {}\r\n", bytes), std::string(bytes, 'x')),
                     small);
  };
  EXPECT_EQ(size(10), 0);
  EXPECT_EQ(size(11), 413);
  EXPECT_EQ(status_of(chunked("a\r\n0123456789\r\n0\r\n\r\n"), small), 0);
  EXPECT_EQ(status_of(chunked("b\r\n"), small), 413);
  EXPECT_EQ(status_of(chunked("6\r\n012345\r\n5\r\n"), small), 413);
  EXPECT_EQ(status_of(chunked("1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n"), small), 400);
}

AE_TEST("http parser/Expect: 100-continue is reported once, and only before the body") {
  HttpParser parser({});
  parser.feed(post("Expect: 100-Continue\r\nContent-Length: 3\r\n"));
  EXPECT_TRUE(parser.take_expects_continue());
  EXPECT_FALSE(parser.take_expects_continue());
  parser.feed("abc");
  EXPECT_EQ(parser.take().body, "abc");
  parser.feed(post("Expect: 100-continue\r\n"));
  EXPECT_EQ(parser.state(), State::request);
  EXPECT_FALSE(parser.take_expects_continue());
}

AE_TEST("http parser/one empty line before a request is skipped") {
  HttpParser parser{HttpLimits()};
  EXPECT_EQ(parser.feed("\r\n"), 2u);
  EXPECT_FALSE(parser.has_begun());
  const Parsed parsed = parse("\r\n" + parsed_get("/x"));
  ASSERT_EQ(parsed.state, State::request);
  EXPECT_EQ(parsed.request.path, std::vector<std::string>{"x"});
}

AE_TEST("http parser/the host of an absolute target replaces the Host header") {
  for (const auto& [target, path, query] :
       std::vector<std::tuple<std::string, std::size_t, std::size_t>>{
           {"http://b.example:7070/api/health", 2, 0},
           {"HTTPS://b.example:7070", 0, 0},
           {"http://b.example:7070?a=1", 0, 1}}) {
    const Parsed parsed = parse(parsed_get(target));
    ASSERT_EQ(parsed.state, State::request) << target;
    EXPECT_EQ(parsed.request.path.size(), path) << target;
    EXPECT_EQ(parsed.request.query.size(), query) << target;
    EXPECT_EQ(parsed.request.header("host"), "b.example:7070") << target;
  }
}

AE_TEST("http parser/before_body_too stops after the headers until read_body()") {
  const std::string body(200'000, 'x');
  const std::string bytes =
      post("Content-Length: 200000\r\nExpect: 100-continue\r\n", body) + parsed_get("/next");
  HttpParser parser(HttpLimits(), HttpParser::StopMode::before_body_too);
  std::size_t at = parser.feed(bytes);
  ASSERT_EQ(parser.state(), State::head);
  EXPECT_EQ(parser.feed(bytes.substr(at)), 0u);
  const HttpRequest head = parser.take_head();
  EXPECT_TRUE(head.has_body);
  EXPECT_EQ(head.path, std::vector<std::string>{"x"});
  EXPECT_TRUE(head.body.empty());
  parser.read_body();
  EXPECT_TRUE(parser.take_expects_continue());
  at += parser.feed(bytes.substr(at));
  ASSERT_EQ(parser.state(), State::request);
  EXPECT_EQ(parser.body_size(), body.size());
  EXPECT_EQ(parser.take().body, body);
  EXPECT_EQ(parser.feed(bytes.substr(at)), bytes.size() - at);
  EXPECT_EQ(parser.state(), State::request) << "no stop for a request without a body";
}

}  // namespace
}  // namespace ae::net
