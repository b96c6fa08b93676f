// HttpParser: parses the bytes of a connection into requests, strictly (RFC
// 9112); it repairs nothing.
//
// Any ambiguity about where a request ends allows request smuggling, so each one is refused:
// bare CR or LF, folded headers, two lengths, any transfer encoding but one `chunked`.
// Limits apply while reading. After a refusal the connection must be closed. Beast's parser
// is not used: it unfolds headers, waits indefinitely for the CR of a bare LF, and keeps
// trailers among the headers.
// Threads: a value. Pure: no sockets, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "net/http_request.h"

namespace ae::net {

struct HttpLimits {
  std::size_t head_max = 16u << 10;   // bytes of request line and headers; separately of trailers
  std::size_t target_max = 8u << 10;  // bytes of the request line
  std::size_t headers_max = 100;
  std::size_t body_max = 4u << 20;
  std::size_t chunks_max = 10'000;
  std::size_t chunk_line_max = 256;  // bytes: size and extensions
};

// Why a request is refused, and the response before closing.
struct HttpRefusal {
  int status = 400;
  Code code = Code::input_invalid;
  std::string detail;
};

class HttpParser {
 public:
  // head: the headers are complete and a body follows; only with StopMode::before_body_too.
  enum class State : std::uint8_t { reading, head, request, refused };
  enum class StopMode : std::uint8_t { after_request, before_body_too };
  explicit HttpParser(const HttpLimits& limits, StopMode stops = StopMode::after_request)
      : limits_(limits), stop_mode_(stops) {}

  // Consumes bytes up to the next stop or a refusal; returns how many.
  std::size_t feed(std::string_view bytes);

  State state() const { return state_; }
  bool has_begun() const {
    return section_ != Section::request_line || !line_.empty() || after_cr_;
  }
  bool is_in_body() const { return section_ > Section::headers; }
  // REQUIRES: state() is head. The request without its body; the state does not change.
  HttpRequest take_head();
  // REQUIRES: state() is head. Continues with the body.
  void read_body() { state_ = State::reading; }
  // Bytes of the body read so far.
  std::size_t body_size() const { return body_size_; }
  // Frees the body read so far. The parser must not be fed again.
  void drop_body() { body_ = {}; }
  // The client waits for "100 Continue" before sending the body. True once.
  bool take_expects_continue();
  // The connection may serve another request after this one.
  bool keep_alive() const { return keep_alive_; }
  bool is_http_1_0() const { return minor_ == 0; }

  // REQUIRES: state() is request. The parser then reads the next one.
  HttpRequest take();  // only body and has_body after take_head()
  // REQUIRES: state() is refused.
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  enum class Section : std::uint8_t {
    request_line,
    headers,
    body,        // with a known length
    chunk_line,  // size and extensions
    chunk,
    chunk_end,  // its CRLF
    trailers,
  };

  std::size_t feed_line(std::string_view bytes);
  std::size_t feed_body(std::string_view bytes);
  void end_line();
  void read_request_line();
  void read_target(std::string_view target);
  std::string_view read_absolute_form(std::string_view target);
  void read_header();
  void read_trailer();
  void end_headers();
  bool read_length(bool chunked);
  void read_chunk_line();
  void refuse(int status, Code code, std::string detail);
  void refuse_bad_request(std::string detail) {
    refuse(400, Code::input_invalid, std::move(detail));
  }
  std::size_t line_max() const;

  HttpLimits limits_;
  StopMode stop_mode_;
  State state_ = State::reading;
  Section section_ = Section::request_line;
  std::string line_;               // the current line so far, without CRLF
  bool after_cr_ = false;          // the line's CR was seen
  bool after_empty_line_ = false;  // before the request line
  std::string target_host_;        // of an absolute-form target
  std::size_t head_bytes_ = 0;     // of this request, or of its trailers
  std::size_t trailers_ = 0;
  std::size_t body_left_ = 0;  // of the body, or of the current chunk
  std::size_t chunks_ = 0;
  std::vector<std::string> body_;  // in parts: a string that doubles needs twice the memory
  std::size_t body_size_ = 0;
  int minor_ = 1;
  bool keep_alive_ = true;
  bool expects_continue_ = false;
  HttpRequest request_;
  HttpRefusal refusal_;
};

}  // namespace ae::net
