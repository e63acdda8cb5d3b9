"""Image files as pixels, decoded here or by processes of their own: these import no more of mdcg than they need."""
