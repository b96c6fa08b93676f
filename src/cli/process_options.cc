#include "cli/process_options.h"

namespace ae::cli {

Option policies_option(std::string& policies) {
  return {"--policies", "FILE", &policies,
          "a policies file: its rules come before those of the agents file"};
}

Option capability_option(ProcessOptions& options) {
  return {"--capability",
          "NAME",
          &options.capabilities,
          "a name that this process offers: it takes jobs that require it; repeatable",
          {.accepts = Accepts::identifier}};
}

// Options for the order of claims.
std::vector<Option> queue_options(ProcessOptions& options) {
  return {{"--queue-limit", "NAME=N", &options.queue_limits,
           "NAME=N: at most N concurrent jobs of this queue; repeatable"},
          {"--fair-by", "LABEL", &options.fair_by,
           "take jobs of each value of this label in turn, so that a long queue of one value does "
           "not delay the others; stored until changed",
           kNotEmpty},
          {"--no-fair-by",
           "",
           &options.no_fair_by,
           "stop using --fair-by",
           {.excludes = {"--fair-by"}}}};
}

Option durability_option(ProcessOptions& options) {
  return {"--durability",
          "MODE",
          &options.durability,
          "fused (default): one write for each step; split: one for each phase, for crash tests",
          {.choices = {"fused", "split"}}};
}

Option signing_key_option(ProcessOptions& options) {
  return {"--signing-key",
          "FILE",
          &options.signing_key,
          "sign the log of each idle job with this Ed25519 key (PEM, mode 0600); `verify --key` "
          "checks it",
          {.variable = "AETHERIS_SIGNING_KEY"}};
}

Option notify_option(ProcessOptions& options, const std::string& how) {
  return {"--notify", "PROGRAM", &options.notify,
          "a program (no shell) to start for each pending request, " + how, kNotEmpty};
}

Option wait_store_option(ServiceOptions& options) {
  return {"--wait-store", "DURATION", &options.wait_store,
          "how long a PostgreSQL store that is down is waited for at the start (default: without "
          "end; 0s = not at all)"};
}

std::vector<Option> service_options(ServiceOptions& options) {
  std::vector<Option> all{
      notify_option(options, "with JSON on stdin; once per question, over restarts"),
      capability_option(options)};
  return std::move(all) + queue_options(options) +
         std::vector<Option>{
             durability_option(options),
             {"--grace", "DURATION", &options.grace,
              "time for calls in flight on shutdown (default 10s)"},
             {"--lease", "DURATION", &options.lease, "lease duration, 1s to 1h (default 30s)"},
             signing_key_option(options),
             {"--log",
              "FORMAT",
              &options.log,
              "a line on stderr for each event, as text or json (default: jobs and warnings)",
              {.choices = {"text", "json"}}},
             {"-v,--verbose", "", &options.verbose,
              "also jobs that are created, start and stop of the service; with --log also rejected "
              "requests"},
             {"--quiet",
              "",
              &options.quiet,
              "no line for each job: warnings and errors only",
              {.excludes = {"--verbose"}}}};
}

}  // namespace ae::cli
