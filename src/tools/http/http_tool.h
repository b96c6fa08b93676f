// HttpTool: a call over HTTP, as an agents file declares it (API.md §1).
//
// Every call says who it is (Idempotency-Key and the X-Aetheris headers), goes out at most once, and is judged by
// SPEC §6 (classify_response.h). Secrets are looked up right before the send, stand in headers only, and are taken out of
// whatever the server says back. Threads: as Tool says.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "expr/expr.h"
#include "net/http_client.h"
#include "tools/http/classify_response.h"
#include "tools/secrets.h"
#include "tools/tool.h"
#include "tools/url_template.h"

namespace ae::tools {

class HttpTool final : public Tool {
 public:
  // Borrowed; the client answers on this loop.
  struct Dependencies {
    async::Loop& loop;
    net::HttpClient& client;
    SecretSource& secrets;
    bool is_read_only =
        false;  // effect: read. Only then may a connection be shared with other calls.
  };

  // {method = GET, url, headers: {name: text with ${ } and secret:NAME}, body: any value with ${ },
  //  result: body | full, definite_failures: [statuses], output_max: bytes or "1MiB", numbers: string}
  // Fails with plan_invalid, or unsupported for a key that is not in this list.
  static Result<std::unique_ptr<HttpTool>> make(const Value& definition, Dependencies deps);
  ~HttpTool() override;
  HttpTool(const HttpTool&) = delete;
  HttpTool& operator=(const HttpTool&) = delete;

  void perform(Permit permit, Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;
  Result<Value> preview(const Call& call) override;

 private:
  struct Header {
    std::string name;
    std::vector<Template::Part> value;
  };
  struct Request;  // what goes out, and the secrets in it
  struct Stream;   // what comes back, while it comes
  struct
      InFlightCalls;  // in flight; shared with their answers, which may come when the tool is gone

  explicit HttpTool(Dependencies deps);
  Status read(const Value& definition);
  Status read_headers(const Value& headers);
  Status read_rules(const Value& definition);
  Status make_request(const Call& call, SecretSource& secrets, Request& request) const;
  Result<std::string> make_body(const ExprScope& scope, const Call& call) const;

  Dependencies deps_;
  std::string method_ = "GET";
  UrlTemplate url_;
  std::vector<Header> headers_;
  bool has_content_type_ = false;
  bool body_is_json_ = true;  // what the headers say
  std::optional<Template> body_;
  HttpRules rules_;
  std::shared_ptr<InFlightCalls> calls_;
};

}  // namespace ae::tools
