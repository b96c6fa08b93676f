// Tests of compression, and of the headers and bodies that it decides.
#include "app/gzip.h"

#include <fmt/core.h>
#include <zlib.h>

#include "app/http_mapping.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::app {
namespace {

std::string gunzip(std::string_view bytes) {
  z_stream stream{};
  AE_CHECK(inflateInit2(&stream, 15 + 16) == Z_OK);
  std::string text(1u << 20, '\0');
  std::string input(bytes);
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  AE_CHECK(inflate(&stream, Z_FINISH) == Z_STREAM_END);
  text.resize(text.size() - stream.avail_out);
  inflateEnd(&stream);
  return text;
}

AE_TEST("gzip/compressed text is smaller and decompresses to the same text") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += fmt::format("event {}\n", i);
  const auto compressed = gzip(text);
  ASSERT_TRUE(compressed);
  EXPECT_LT(compressed->size(), text.size() / 2);
  EXPECT_EQ(gunzip(*compressed), text);
  EXPECT_EQ(gunzip(*gzip("")), "");
}

AE_TEST("gzip/a client accepts gzip by name or by a wildcard, with a weight above 0") {
  for (const char* header : {"gzip", "deflate, gzip", "br;q=1.0, GZIP ;q=0.5", "*", "*;q=0.1",
                             "identity;q=0, gzip; q=0.001"}) {
    EXPECT_TRUE(accepts_gzip(header)) << header;
  }
  for (const char* header :
       {"", "identity", "br", "gzip;q=0", "gzip; q=0.000, *", "*;q=0", "gzipped"}) {
    EXPECT_FALSE(accepts_gzip(header)) << header;
  }
}

net::HttpRequest request_with(std::string method, net::HttpHeaders headers) {
  net::HttpRequest request;
  request.method = std::move(method);
  request.path = {"api", "jobs"};
  request.headers = std::move(headers);
  return request;
}

api::ApiRequest to_api(net::HttpRequest request) {
  return to_api_request(std::move(request), api::Principal{}, true);
}

const std::string* header_of(const net::HttpResponse& response, std::string_view name) {
  for (const net::HttpHeader& header : response.headers) {
    if (header.name == name) return &header.value;
  }
  return nullptr;
}

AE_TEST("http_mapping/a body over 1 KiB of a GET is compressed for a client that accepts gzip") {
  const Value large = Value::object({{"text", std::string(4000, 'a')}});
  const Value small = Value::object({{"text", "a"}});
  const api::ApiRequest accepts = to_api(request_with("GET", {{"accept-encoding", "gzip"}}));
  api::ApiResponse response;
  response.rendered = accepts.render(large);
  EXPECT_TRUE(response.rendered->gzip);
  EXPECT_EQ(gunzip(response.rendered->bytes), canonical(large) + "\n");
  const net::HttpResponse sent = to_http_response(std::move(response));
  ASSERT_NE(header_of(sent, "Content-Encoding"), nullptr);
  EXPECT_EQ(*header_of(sent, "Content-Encoding"), "gzip");
  EXPECT_EQ(sent.content_type, "application/json");

  EXPECT_FALSE(accepts.render(small).gzip);
  EXPECT_EQ(accepts.render(small).bytes, canonical(small) + "\n");
  EXPECT_FALSE(to_api(request_with("GET", {})).render(large).gzip);
  EXPECT_FALSE(to_api(request_with("POST", {{"accept-encoding", "gzip"}})).render(large).gzip);
}

AE_TEST("http_mapping/If-None-Match of a GET is passed on, and a 304 has the tag and no body") {
  const net::HttpHeaders headers{{"if-none-match", "\"a\""}, {"if-none-match", "\"b\""}};
  EXPECT_EQ(to_api(request_with("GET", headers)).if_none_match, "\"a\",\"b\"");
  EXPECT_EQ(to_api(request_with("HEAD", headers)).if_none_match, "\"a\",\"b\"");
  EXPECT_EQ(to_api(request_with("POST", headers)).if_none_match, "");
  api::ApiResponse unchanged;
  unchanged.status = 304;
  unchanged.etag = "W/\"a\"";
  const net::HttpResponse sent = to_http_response(std::move(unchanged));
  EXPECT_EQ(sent.status, 304);
  EXPECT_EQ(sent.body, "");
  EXPECT_EQ(sent.content_type, "");
  ASSERT_NE(header_of(sent, "ETag"), nullptr);
  EXPECT_EQ(*header_of(sent, "ETag"), "W/\"a\"");
}

}  // namespace
}  // namespace ae::app
