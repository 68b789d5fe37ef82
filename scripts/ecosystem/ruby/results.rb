# frozen_string_literal: true

# Lets minitest write a line for each test to ECOSYSTEM_RESULTS: its name, what became of it, the error's first lines.

require "minitest"

module Minitest
  class ResultsReporter < AbstractReporter
    def initialize
      super
      @file = File.open(ENV.fetch("ECOSYSTEM_RESULTS"), "a")
      @file.sync = true
    end

    def record(result)
      outcome = result.skipped? ? "skipped" : result.passed? ? "ok" : "failed"
      said = outcome == "failed" ? result.failure.message.scrub.split.join(" ")[0, 300] : ""
      @file.write("#{result.klass}##{result.name}".split.join(" "), "\t#{outcome}\t#{said}\n")
    end
  end

  def self.plugin_results_init(_options)
    reporter << ResultsReporter.new
  end
end
Minitest.extensions << "results"
