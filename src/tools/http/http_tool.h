// HttpTool: a tool whose calls are HTTP requests, as an agents file declares it
// (docs/agents-file.md).
//
// Each call carries its keys (Idempotency-Key and the X-Aetheris headers), is sent at most once,
// and gets its outcome from classify_response.h (SPEC §6). Secrets are resolved right before the
// send, appear in headers only, and are scrubbed from the response. Threads: as for Tool.
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
  // Borrowed. `client` must run on `loop`.
  struct Dependencies {
    async::Loop& loop;
    net::HttpClient& client;
    SecretSource& secrets;
    bool is_read_only = false;  // effect: read. Only then may calls share a connection
  };

  // {method = GET, url, headers: {name: text with ${ } and secret:NAME}, body: any value with ${ },
  //  result: body | full, definite_failures: [statuses], output_max: bytes or "1MiB",
  //  numbers: string}
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
  struct Request;        // the outgoing request, and the secrets in it
  struct Stream;         // a streamed response
  struct InFlightCalls;  // shared with responses that may arrive after the tool is destroyed

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
  bool body_is_json_ = true;  // by the Content-Type header
  std::optional<Template> body_;
  HttpRules rules_;
  std::shared_ptr<InFlightCalls> calls_;
};

}  // namespace ae::tools
