# Print `lines` requests, beginning with number `first`. The state of the generator depends on `first`
# only, and stays below 2^53, where awk's numbers are exact.

function random(below) {
    state = (state * 16807) % 2147483647
    return int(state / 7) % below
}

function request(client, method, path, status, duration) {
    seconds = number * 2
    printf "r%05d 2024-05-02T%02d:%02d:%02dZ %s %s %s %d %d\n", number, int(seconds / 3600) + 6, \
        int(seconds / 60) % 60, seconds % 60, client, method, path, status, duration
}

function ordinary() {
    client = "10.0." random(4) "." (random(40) + 1)
    kind = random(100)
    if (kind < 40)
        request(client, "GET", "/search", random(50) == 0 ? 503 : 200, 20 + random(400))
    else if (kind < 70)
        request(client, "GET", "/item/" random(300), random(20) == 0 ? 404 : 200, 5 + random(40))
    else if (kind < 80)
        request(client, "POST", "/login", random(4) == 0 ? 401 : 200, 30 + random(30))
    else if (kind < 90)
        request(client, "POST", "/cart", random(9) == 0 ? 500 : 200, 15 + random(90))
    else
        request(client, "GET", "/account/" random(90), 200, 12 + random(50))
}

BEGIN {
    state = first * 31 + 11
    for (number = first; number < first + lines; number++) {
        if (number % 37 == 5 && number > 2000 && number < 6900)
            request(number % 3 ? "203.0.113.49" : "203.0.113.40", "POST", "/login", 401, 33)
        else if (number == 6907)
            request("203.0.113.49", "POST", "/login", 200, 35)
        else if (number == 6911)
            request("203.0.113.49", "GET", "/account/58", 200, 21)
        else if (number == 6912)
            request("203.0.113.49", "GET", "/account/57", 403, 9)
        else if (number % 1877 == 1000)
            request("10.0.3.7", "GET", "/search", 200, 3000 + number)
        else
            ordinary()
    }
}
