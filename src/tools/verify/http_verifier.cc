#include "tools/verify/http_verifier.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "net/outbound.h"

namespace ae::tools {
namespace {

constexpr std::size_t kAnswerMax = 4u << 20;  // bytes of a body

Observation observe_response(const HttpVerifier::Options& options, const net::HttpResult& answer) {
  using net::HttpPhase;
  const bool enough = answer.phase == HttpPhase::complete ||
                      (!options.body && answer.too_large && answer.status > 0);
  if (!enough) {
    return {.unreachable = answer.error.empty() ? "no whole answer" : answer.error, .value = {}};
  }
  if (answer.status == 404 || answer.status == 410) {
    return {.unreachable = {}, .absent = true, .value = {}};
  }
  if (answer.status < 200 || answer.status > 299) {
    return {.unreachable = fmt::format("it answered with status {}", answer.status), .value = {}};
  }
  return options.observe(answer);
}

}  // namespace

void HttpVerifier::check(Value change, async::Done<CheckResult> done) {
  const auto report_unreachable = [&](const Error& error) {
    deps_.loop.post([done = std::move(done), reason = error.message]() mutable {
      done(
          {.verdict = CheckVerdict::unreachable, .expected = {}, .observed = {}, .reason = reason});
    });
  };
  std::vector<UsedSecret> used;
  auto url = options_.url(change);
  if (!url) return report_unreachable(url.error());
  auto headers = options_.headers.fill(deps_.secrets, used);
  if (!headers) return report_unreachable(headers.error());
  for (const net::HttpHeader& header : options_.default_headers) {
    if (!net::find_header(*headers, header.name)) headers->push_back(header);
  }
  deps_.secrets.add_known(used);
  net::HttpCall call;
  call.url = *std::move(url);
  call.headers = *std::move(headers);
  call.public_only = !options_.is_host_literal && !net::matches_host(options_.allow, call.url);
  call.new_connection = call.public_only;
  call.total_timeout = options_.timeout;
  call.connect_timeout = std::min<Duration>(options_.timeout, call.connect_timeout);
  call.response_max = kAnswerMax;
  // `options` is copied: the response may arrive after this verifier is destroyed.
  deps_.client.start(std::move(call),
                     [options = options_, change = std::move(change), used = std::move(used),
                      done = std::move(done)](net::HttpResult answer) mutable {
                       // Scrub before `compare` truncates: scrub would not find half of a secret.
                       Observation observation = observe_response(options, answer);
                       observation.value = scrub(observation.value, used);
                       observation.unreachable = scrub(observation.unreachable, used);
                       done(compare(change, options.recorded, observation, options.same));
                     });
}

}  // namespace ae::tools
