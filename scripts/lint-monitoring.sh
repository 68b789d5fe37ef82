#!/bin/bash
# Has Prometheus's own promtool check what docs/monitoring.md gives to it: the configuration on that page, the alarms, what
# makes each of them go off and what does not (testdata/monitoring/alerts.yml), and the expressions of the dashboard.
#
#   scripts/lint-monitoring.sh [DIR]     DIR: where promtool is kept (default: target/prometheus)
#
# promtool is taken out of Debian's package, which would start a Prometheus if it were installed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/debian.sh
. scripts/debian.sh
dir=$(realpath -m "${1:-target/prometheus}")
alerts=docs/monitoring/alerts.yml
tests=testdata/monitoring/alerts.yml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "lint-monitoring: $*" >&2
    exit 1
}

if [ ! -x "$dir/promtool" ]; then
    if ! unpack_package prometheus bookworm "$dir/package"; then
        echo "lint-monitoring: NOT CHECKED: promtool could not be fetched (Debian's package prometheus)" >&2
        exit
    fi
    mv "$dir/package/usr/bin/promtool" "$dir/"
    rm -rf "$dir/package"
fi
# promtool WHAT ARGUMENT...: quietly, unless it finds something.
promtool() {
    "$dir/promtool" "$@" >"$work/out" 2>&1 || {
        cat "$work/out" >&2
        fail "promtool $1 $2 fails"
    }
}

# The page's configuration, with files that it names.
cp $alerts "$work/"
touch "$work/onetrip-ca.crt" "$work/onetrip.token"
sed -n '/^scrape_configs:/,/^```/p' docs/monitoring.md | grep -v '^```' | sed "s#/etc/prometheus#$work#" >"$work/prometheus.yml"
grep -q "$work/onetrip.token" "$work/prometheus.yml" || fail "docs/monitoring.md has no configuration"
promtool check config "$work/prometheus.yml"

promtool test rules $tests
# Each alarm goes off in a test, and does not in one.
names=$(sed -n 's/^ *- alert: //p' $alerts)
for alert in $names; do
    perl -0777 -ne '
        my ($fires, $silent) = (0, 0);
        for (/alertname: '"$alert"'\n\s+exp_alerts:(.*)\n/g) { /\[\]/ ? $silent++ : $fires++ }
        exit !($fires && $silent)' $tests || fail "$tests has no time at which $alert goes off, or none at which it does not"
done

# The dashboard's expressions, as rules.  Grafana puts the cluster in.
perl -MJSON::PP -0777 -ne '
    my $n = 0;
    sub walk {
        my ($value) = @_;
        if (ref $value eq "ARRAY") { walk($_) for @$value }
        elsif (ref $value eq "HASH") {
            if (defined(my $expr = $value->{expr})) {
                $expr =~ s/\$cluster\b/orders/g;
                $expr =~ /\$/ and die "a variable that nobody replaces: $expr\n";
                printf "      - record: dashboard:%d\n        expr: %s\n", ++$n, encode_json([$expr]) =~ s/^\[|\]$//gr;
            }
            walk($_) for map { $value->{$_} } sort keys %$value;
        }
    }
    print "groups:\n  - name: dashboard\n    rules:\n";
    walk(decode_json($_));
    $n or die "no expressions\n"' docs/monitoring/dashboard.json >"$work/dashboard.yml"
promtool check rules "$work/dashboard.yml"
echo "lint-monitoring: $(wc -w <<<"$names") alarms, $(grep -c record: "$work/dashboard.yml") expressions of the dashboard"
